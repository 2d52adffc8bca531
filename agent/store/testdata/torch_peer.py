"""Plays the other end of a TCPStore with PyTorch.

serve          serves a store; prints its port; ends with its standard input
use HOST PORT  uses a store that a test serves; prints what it saw as JSON
rpc            joins an RPC group of two that the environment describes, makes a
               call, and leaves
"""
import json
import sys
from datetime import timedelta

try:
    from torch.distributed import PrefixStore, TCPStore
except ImportError as e:
    print(json.dumps({"missing": str(e)}), flush=True)
    sys.exit(0)

LONG = timedelta(seconds=30)


def connect(host, port, **options):
    return TCPStore(host, int(port), is_master=False, timeout=LONG, **options)


def serve():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LONG)
    print(json.dumps({"port": store.port}), flush=True)
    sys.stdin.read()


def use(host, port):
    print(json.dumps({"ready": True}), flush=True)
    a = connect(host, port, world_size=2)  # counts itself
    b = connect(host, port, wait_for_workers=False)
    seen = {}

    a.set("key", b"one")
    seen["get"] = b.get("key").decode()
    a.set("empty", "")
    seen["empty"] = b.get("empty").decode()
    large = bytes(range(256)) * 4096
    a.set("large", large)
    seen["large"] = b.get("large") == large

    seen["add"] = [a.add("number", 40), b.add("number", 2), a.add("number", -50)]
    seen["number"] = a.get("number").decode()

    seen["create"] = a.compare_set("cas", "", "one").decode()
    seen["swap"] = b.compare_set("cas", "one", "two").decode()
    seen["mismatch"] = a.compare_set("cas", "one", "three").decode()
    seen["absent"] = a.compare_set("absent", "expected", "desired").decode()

    seen["delete"] = [a.delete_key("key"), b.delete_key("key")]
    seen["keys"] = b.num_keys()
    PrefixStore("inner", PrefixStore("outer", a)).set("key", "prefixed")

    # The test answers when it sees this.
    a.set("asked", "1")
    a.wait(["empty", "answer1", "answer2"], LONG)
    seen["answer"] = a.get("answer2").decode()

    # A client that gave up waiting has a connection out of step, and is lost.
    hasty = connect(host, port, wait_for_workers=False)
    try:
        hasty.wait(["never"], timedelta(milliseconds=20))
        seen["hasty"] = "waited"
    except Exception:
        seen["hasty"] = "timed out"
    del hasty
    seen["last"] = a.get("answer1").decode()
    print(json.dumps(seen), flush=True)


def join():
    import os
    import torch
    import torch.distributed.rpc as rpc

    print(json.dumps({"ready": True}), flush=True)
    rank = int(os.environ["RANK"])
    options = rpc.TensorPipeRpcBackendOptions(init_method="env://", rpc_timeout=30)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    got = rpc.rpc_sync(f"worker{1 - rank}", torch.add, (torch.ones(2), rank))
    rpc.shutdown()
    print(json.dumps({"sum": got.tolist()}), flush=True)


if sys.argv[1] == "serve":
    serve()
elif sys.argv[1] == "rpc":
    join()
else:
    use(sys.argv[2], sys.argv[3])
