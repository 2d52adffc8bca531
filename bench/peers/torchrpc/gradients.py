"""The jobs of peer.py with distributed autograd.

    train=N      N epochs of the training of tpipe train: a network 64-128-10 with a stage
                 on each of two other processes, on handwritten digits, tested after each
                 epoch; a sample is a step, and per_s counts steps, tests included
    e2e=N        N iterations of the loop of PyTorch's end-to-end test: six chained sums
                 of tensors at the other process, a reference to a seventh one, which is
                 fetched, and the pass through all of them
    backward=N   N passes of e2e alone
"""
import csv
import gzip
import os
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch.distributed.optim import DistributedOptimizer

DIGITS = "../../../cmd/tpipe/internal/train/data/digits.csv.gz"
ROWS, BATCH, HIDDEN, RATE = 1437, 32, 128, 0.1
JOBS = {"train": 3, "e2e": 2, "backward": 2}  # with the number of processes


def load():
    """Returns the images and the digits."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), DIGITS)
    with gzip.open(path, "rt") as text:
        rows = torch.tensor([[float(v) for v in row] for row in csv.reader(text)])
    return rows[:, :64] / 16, rows[:, 64].long()


class Hidden(torch.nn.Module):
    """The stage with the hidden layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, HIDDEN)

    def forward(self, x):
        return torch.relu(self.layer(x))

    def infer(self, x):
        with torch.no_grad():
            return self.forward(x)

    def references(self):
        return [rpc.RRef(p) for p in self.parameters()]


class Output(torch.nn.Module):
    """The stage with the last layer and the loss."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(HIDDEN, 10)

    def forward(self, h, digits):
        return torch.nn.functional.cross_entropy(self.layer(h), digits)

    def correct(self, h, digits):
        with torch.no_grad():
            return int((self.layer(h).argmax(1) == digits).sum())

    def references(self):
        return [rpc.RRef(p) for p in self.parameters()]


def train():
    images, digits = load()
    hidden, output = rpc.remote("worker1", Hidden), rpc.remote("worker2", Output)
    parameters = hidden.rpc_sync().references() + output.rpc_sync().references()
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=RATE)
    batches = [(images[i:min(i + BATCH, ROWS)].clone(), digits[i:min(i + BATCH, ROWS)].clone())
               for i in range(0, ROWS, BATCH)]
    test = images[ROWS:].clone(), digits[ROWS:].clone()

    def step(x, y):
        with dist_autograd.context() as context:
            h = hidden.rpc_sync().forward(x)
            loss = output.rpc_sync().forward(h, y)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        return loss.item()

    losses = []

    def calls(n):
        samples, correct = [], []
        for _ in range(n):
            for x, y in batches:
                begin = time.perf_counter_ns()
                losses.append(step(x, y))
                samples.append(time.perf_counter_ns() - begin)
            h = hidden.rpc_sync().infer(test[0])
            correct.append(output.rpc_sync().correct(h, test[1]))
        return samples, lambda: check_training(losses, correct)

    return calls


def check_training(losses, correct):
    if not losses[-1] < losses[0] or not 0 < correct[-1] <= 360:
        raise ValueError(f"the losses begin with {losses[0]} and end with {losses[-1]}, {correct[-1]} correct")


def forward(x, y):
    """Returns the scalar of one iteration of the loop."""
    result = rpc.rpc_sync("worker1", torch.add, args=(x, y))
    for _ in range(5):
        result = rpc.rpc_sync("worker1", torch.add, args=(x, result))
    return rpc.remote("worker1", torch.add, args=(x, result)).to_here().sum()


def loop(only_backward):
    x, y = torch.ones(3, 3, requires_grad=True), torch.ones(3, 3, requires_grad=True)

    def calls(n):
        samples, gradients = [], []
        for _ in range(n):
            begin = time.perf_counter_ns()
            with dist_autograd.context() as context:
                loss = forward(x, y)
                if only_backward:
                    begin = time.perf_counter_ns()
                dist_autograd.backward(context, [loss])
                if only_backward:
                    samples.append(time.perf_counter_ns() - begin)
                gradients.append(dist_autograd.get_gradients(context))
            if not only_backward:
                samples.append(time.perf_counter_ns() - begin)
        return samples, lambda: check_gradients(gradients, x, y)

    return calls


def check_gradients(gradients, x, y):
    for g in gradients:
        if not (torch.equal(g[x], torch.full((3, 3), 7.0)) and torch.equal(g[y], torch.ones(3, 3))):
            raise ValueError(f"the gradients are {g}")


def prepare(kind):
    """Returns a function that makes n epochs, iterations or passes, as in peer.py."""
    torch.set_num_threads(1)
    return train() if kind == "train" else loop(kind == "backward")
