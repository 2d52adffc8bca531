"""Calls operators of PyTorch: reads a list of calls as JSON, prints what they return.

A tensor is {"dtype", "shape", "data"}, the elements in row-major order as base64;
a sparse one {"sparse": [indices, values], "shape", "coalesced"}.
"""
import base64
import json
import sys
import warnings

warnings.simplefilter("ignore")
try:
    import torch
except ImportError as e:
    print(json.dumps({"missing": str(e)}), flush=True)
    sys.exit(0)

DTYPES = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "c64": torch.complex64, "c128": torch.complex128,
}
NAMES = {d: n for n, d in DTYPES.items()}


def load(v):
    if isinstance(v, list):
        return [load(e) for e in v]
    if not isinstance(v, dict):
        return v
    if "float" in v:
        return float(v["float"])
    if "sparse" in v:
        s = torch.sparse_coo_tensor(load(v["sparse"][0]), load(v["sparse"][1]), v["shape"])
        return s.coalesce() if v["coalesced"] else s
    data = bytearray(base64.b64decode(v["data"]))
    if not data:
        return torch.zeros(v["shape"], dtype=DTYPES[v["dtype"]])
    return torch.frombuffer(data, dtype=DTYPES[v["dtype"]]).reshape(v["shape"])


def dump(v):
    if isinstance(v, (list, tuple)):
        return [dump(e) for e in v]
    if isinstance(v, float):
        return {"float": repr(v)}
    if not isinstance(v, torch.Tensor):
        return v
    if v.is_sparse:
        return {"sparse": [dump(v._indices()), dump(v._values())], "shape": list(v.shape)}
    flat = v.contiguous().reshape(-1)
    raw = bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""
    return {"dtype": NAMES[v.dtype], "shape": list(v.shape), "data": base64.b64encode(raw).decode()}


def call(c):
    name, _, overload = c["op"].removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, name), overload or "default")
    # torch.ops takes a bool for an int, the functions do not.
    function = getattr(torch, name) if c["bools"] else op
    try:
        out = function(*[load(a) for a in c["args"]], **{k: load(v) for k, v in c["named"].items()})
    except Exception as e:
        return {"error": str(e)}
    if getattr(out, "dtype", None) is torch.complex32:
        return {"skip": "a dtype that the other side lacks"}
    many = len(op._schema.returns) != 1
    return {"results": dump(out if many else [out]), "schema": str(op._schema)}


print(json.dumps([call(c) for c in json.load(sys.stdin)]), flush=True)
