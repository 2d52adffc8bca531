"""Evaluates expressions and their gradients with PyTorch, for TestTorch.

The input is a list of {"expression": in which x is the list of inputs, "inputs": [{"data", "shape",
"grad"}]}, where inputs without "grad" are integers if "integers" is set. The output has, for each, the
result, the gradients of the inputs if the gradient of element i of the result is cos(i+1), and the names
of the nodes that the result depends on.
"""
import json
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(json.dumps({"missing": str(missing)}))
    sys.exit(0)


def make(v):
    x = torch.tensor(v["data"] or [], dtype=torch.int64 if v["integers"] else torch.float64).reshape(v["shape"])
    return x.requires_grad_(v["grad"])


def names(node):
    pending, all = [node], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in all:
            all.add(node)
            pending += [edge[0] for edge in node.next_functions]
    return sorted({node.name() for node in all})


def plain(x):
    x = x.to_dense() if x.layout != torch.strided else x
    return {"shape": list(x.shape), "data": [str(v) for v in x.flatten().tolist()]}


def answer(question):
    x = [make(v) for v in question["inputs"]]
    try:
        out = eval(question["expression"])
        factors = torch.cos(torch.arange(out.numel(), dtype=torch.float64) + 1).reshape(out.shape)
        out.backward(factors)
    except (RuntimeError, IndexError, ValueError) as err:
        return {"error": str(err)}
    grads = [plain(v.grad) if v.grad is not None else None for v in x]
    return {"out": plain(out), "grads": grads, "names": names(out.grad_fn)}


print(json.dumps([answer(q) for q in json.load(sys.stdin)]))
