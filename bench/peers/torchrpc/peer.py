"""Measures calls and remote references of torch.distributed.rpc between processes of one
machine, for comparison with calls and references between workers.

    peer.py [--over default|tcp] [--limit SECONDS] JOB...

A job is one of

    add@DEPTH=N    N calls of torch.add on two 2x2 tensors of float32, DEPTH in flight
    bytes@SIZE=N   N calls of a Python function on a tensor of SIZE bytes, one after
                   the other
    remote=N       N references to the sum of two 2x2 tensors of float32, which another
                   process computes and keeps: each is created, fetched and dropped
    share=N        N references like those of remote, each passed in a call to a third
                   process, which fetches the sum, drops its reference and returns the
                   sum, and then dropped here
    train=N, e2e=N, backward=N
                   N epochs, iterations or passes with distributed autograd: the comment
                   of gradients.py describes them

Each job prints a line of JSON. Times are in microseconds.

A call begins before rpc_sync is called and ends when that has returned the reply.
With several in flight it begins before rpc_async is called and ends when the wait for
the oldest future has returned, after which the next call is made. Replies are checked
after the measurement. A reference begins before rpc.remote and ends when it is dropped:
the message by which the owner learns that is not waited for, but sent within the job. A
tenth of the calls, but at most 1000, are made before those that count. cpu_us is the CPU
time of all processes divided by the number of calls.

The agent has default options, with which it uses shared memory and cma within a host;
with tcp it has only the transport uv and the channel basic.

The other workers, two if there is a job share or train and otherwise one, are the same
program, started as children. They end when their stdin does. All end themselves at the
time limit.
"""
import argparse
import collections
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed.rpc as rpc

import gradients

MOST_DEPTH, LONGEST = 10_000, 256 << 20
REFERENCES = {"remote", "share"}
CALLEE, THIRD = "worker1", "worker2"


def join(rank, world, over, folder):
    """Joins the group. Its store is a file, so that no port is needed."""
    path = {"default": {}, "tcp": {"_transports": ["uv"], "_channels": ["basic"]}}[over]
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/store", **path)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world, rpc_backend_options=options)


def end_with_stdin():
    """Ends this process when its parent has ended."""

    def wait():
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def ends(tensor):
    """The function of bytes@SIZE: returns the size of the argument and its last byte."""
    return tensor.numel(), int(tensor[-1])


def process_time():
    return time.process_time_ns()


def used(world):
    """Returns the CPU time of all processes in nanoseconds."""
    return process_time() + sum(rpc.rpc_sync(f"worker{rank}", process_time) for rank in range(1, world))


def matrices():
    return torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[10.0, 20], [30, 40]])


def add_in_turn():
    a, b = matrices()

    def calls(n):
        samples, answers = [], []
        for _ in range(n):
            begin = time.perf_counter_ns()
            answer = rpc.rpc_sync(CALLEE, torch.add, args=(a, b))
            samples.append(time.perf_counter_ns() - begin)
            answers.append(answer)
        return samples, lambda: check_sums(answers, a + b)

    return calls


def add_in_flight(depth):
    a, b = matrices()

    def calls(n):
        samples, answers, pending = [], [], collections.deque()

        def take():
            begin, future = pending.popleft()
            answers.append(future.wait())
            samples.append(time.perf_counter_ns() - begin)

        for _ in range(n):
            if len(pending) == depth:
                take()
            begin = time.perf_counter_ns()
            pending.append((begin, rpc.rpc_async(CALLEE, torch.add, args=(a, b))))
        while pending:
            take()
        return samples, lambda: check_sums(answers, a + b)

    return calls


def check_sums(answers, want):
    for got in answers:
        if not torch.equal(got, want):
            raise ValueError(f"the sum is {got}")


def send_bytes(size):
    # Cloned, because of a view the whole storage would be sent.
    tensor = torch.arange(256).to(torch.uint8).repeat(size // 256 + 1)[:size].clone()

    def calls(n):
        samples, answers = [], []
        for i in range(n):
            tensor[-1] = i & 255  # counts the calls
            begin = time.perf_counter_ns()
            answer = rpc.rpc_sync(CALLEE, ends, args=(tensor,))
            samples.append(time.perf_counter_ns() - begin)
            answers.append(answer)
        return samples, lambda: check_ends(answers, size)

    return calls


def check_ends(answers, size):
    for i, got in enumerate(answers):
        if got != (size, i & 255):
            raise ValueError(f"call {i} with {size} bytes: got {got}")


def fetch(reference):
    """The function that share calls: returns the value of the reference."""
    return reference.to_here()


def refer(get):
    """Makes references to sums on CALLEE, each dropped when get has returned its value."""
    a, b = matrices()

    def calls(n):
        samples, answers = [], []
        for _ in range(n):
            begin = time.perf_counter_ns()
            reference = rpc.remote(CALLEE, torch.add, args=(a, b))
            answer = get(reference)
            del reference
            samples.append(time.perf_counter_ns() - begin)
            answers.append(answer)
        return samples, lambda: check_sums(answers, a + b)

    return calls


def share(reference):
    return rpc.rpc_sync(THIRD, fetch, args=(reference,))


def prepare(kind, param):
    """Creates the arguments and returns a function that makes n calls. That returns
    their times in nanoseconds and a function that checks the replies."""
    if kind == "bytes":
        return send_bytes(param)
    if kind in gradients.JOBS:
        return gradients.prepare(kind)
    if kind in REFERENCES:
        return refer(fetch if kind == "remote" else share)
    return add_in_turn() if param == 1 else add_in_flight(param)


def measure(over, world, job):
    kind, param, n = job
    calls = prepare(kind, param)
    _, check = calls(min(n // 10 + 1, 1000))
    check()
    before = used(world)
    begin = time.perf_counter_ns()
    samples, check = calls(n)
    took = (time.perf_counter_ns() - begin) / 1e9
    cpu = used(world) - before
    check()
    samples.sort()
    result = {"what": f"{kind}@{param}" if param else kind, "over": over, "n": n}
    for percent in 50, 90, 99:
        result[f"p{percent}_us"] = samples[max((len(samples) * percent + 99) // 100, 1) - 1] / 1e3
    result |= {"per_s": len(samples) / took, "cpu_us": cpu / 1e3 / len(samples)}
    if kind == "bytes":
        result["bytes_per_s"] = n * param / took
    return result


def parse_job(text):
    """Returns the kind, the number after the @ or 0 if there is none, and the number of calls."""
    try:
        what, n = text.split("=")
        kind, at, param = what.partition("@")
        most = {"add": MOST_DEPTH, "bytes": LONGEST} | dict.fromkeys([*REFERENCES, *gradients.JOBS], 0)
        n, most = int(n), most[kind]
        param = int(param) if most else len(at)
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{text!r} is not add@DEPTH=N, bytes@SIZE=N or the name of another job and =N")
    if not (min(1, most) <= param <= most and n >= 1):
        raise argparse.ArgumentTypeError(f"{text!r}: want DEPTH up to {MOST_DEPTH}, SIZE up to {LONGEST}, N from 1 on")
    return kind, param, n


def parse():
    parser = argparse.ArgumentParser(description="Measures torch.distributed.rpc.")
    parser.add_argument("--over", choices=["default", "tcp"], default="default")
    parser.add_argument("--limit", type=float, default=120, help="seconds for everything")
    parser.add_argument("--callee", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("job", nargs="*", type=parse_job)
    args = parser.parse_args()
    if not args.job and not args.callee:
        parser.error("no job: want for example add@1=10000")
    return args


def be_callee(args):
    end_with_stdin()
    join(args.rank, args.world, args.over, args.callee)
    rpc.shutdown()  # serves until the caller has shut down
    os._exit(0)  # ends the thread that waits for stdin too


def be_caller(args, folder):
    world = 3 if any(kind in ("share", "train") for kind, _, _ in args.job) else 2
    command = [sys.executable, __file__, "--over", args.over, "--limit", str(args.limit), "--callee", folder]
    children = []
    try:
        for rank in range(1, world):
            child = [*command, "--rank", str(rank), "--world", str(world)]
            children.append(subprocess.Popen(child, stdin=subprocess.PIPE, stdout=sys.stderr))
        join(0, world, args.over, folder)
        for job in args.job:
            print(json.dumps(measure(args.over, world, job)), flush=True)
        rpc.shutdown()
        for child in children:
            if child.wait() != 0:
                raise RuntimeError(f"a worker ended with {child.returncode}")
    finally:
        for child in children:
            child.kill()
            child.wait()


def main():
    args = parse()
    # Works even if all threads hang, because it needs no interpreter lock.
    faulthandler.dump_traceback_later(args.limit, exit=True)
    # All connections stay within this machine.
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = "lo"
    if args.callee:
        be_callee(args)
    with tempfile.TemporaryDirectory(prefix="torchrpc") as folder:
        be_caller(args, folder)


if __name__ == "__main__":
    main()
