"""A short training on seeded synthetic data, and the lines in which its ranks say how it ended.

Run as a script it trains; imported it reads what the ranks have said.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from typing import NamedTuple

STEPS = 20
BATCH = 6
_LINE = re.compile(r"rank (\d+) of (\d+): loss (\S+) parameters ([0-9a-f]{64})")


class Ending(NamedTuple):
    """How the training ended on one rank: the averaged loss, and a hash of all parameters."""

    loss: str
    parameters: str


def command() -> list[str]:
    """What a launcher has to start."""
    return [sys.executable, __file__]


def environment(**variables: str) -> dict[str, str]:
    """Our own environment without a job's identity, with one computing thread per process."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HOROVOD_")}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def endings(output: bytes, size: int) -> list[Ending]:
    """How every rank ended, in the order of the ranks; all `size` must have said it once."""
    lines = [match.groups() for match in _LINE.finditer(output.decode())]
    assert sorted((int(rank), int(of)) for rank, of, _, _ in lines) == [
        (rank, size) for rank in range(size)
    ], output.decode()
    return [Ending(*line[2:]) for line in sorted(lines, key=lambda line: int(line[0]))]


def train() -> None:
    """Twenty steps of a small convolutional network whose gradients are many tensors."""
    import torch

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(7 + hvd.rank())  # the broadcast must make up for the different starts
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 4, 3, padding=1),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 8 * 8, 33),
        torch.nn.Tanh(),
        torch.nn.Linear(33, 5),
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    data = torch.Generator().manual_seed(1000 + hvd.rank())
    loss = torch.zeros(())
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(BATCH, 3, 8, 8, generator=data)
        targets = torch.randint(5, (BATCH,), generator=data)
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    average = hvd.allreduce(loss.detach(), name="loss").item()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    # One write, so that ranks which share a pipe don't mix within the line.
    sys.stdout.write(
        f"rank {hvd.rank()} of {hvd.size()}: loss {average!r} parameters {digest.hexdigest()}\n"
    )
    sys.stdout.flush()
    hvd.shutdown()


if __name__ == "__main__":
    train()
