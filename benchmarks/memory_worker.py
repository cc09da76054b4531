"""One rank of `memory.py`: trains a model of `MIB` MiB, with Horovod or without, and is looked at.

memory_worker.py without|with MIB
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from worker_link import serve

LAYERS, STEPS = 8, 5


def make_model(mebibytes: int) -> nn.Module:
    """Eight square linear layers with ``mebibytes`` of float32 parameters together."""
    width = int((mebibytes * 2**20 / 4 / LAYERS) ** 0.5)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))


def train(with_horovod: bool, mebibytes: int) -> None:
    """A few steps, so that all memory that is ever needed is there; then answers the conductor."""
    model = make_model(mebibytes)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    if with_horovod:
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    else:
        rank = int(os.environ["RANK"])
    inputs = torch.randn(4, next(model.parameters()).shape[1])
    for _ in range(STEPS):
        # The gradients stay allocated from step to step, in both cases alike.
        optimizer.zero_grad(set_to_none=False)
        model(inputs).square().mean().backward()
        optimizer.step()
    serve(rank, {"memory": memory})


def memory(_request: dict[str, Any]) -> dict[str, Any]:
    """Kilobytes from /proc: resident, highest resident, and proportional (shared pages divided)."""
    found: dict[str, Any] = {}
    for file, keys in (("status", ("VmRSS", "VmHWM")), ("smaps_rollup", ("Pss",))):
        for line in Path("/proc/self", file).read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in keys:
                found[key] = int(rest.split()[0])
    return found


def main() -> None:
    torch.set_num_threads(1)
    train(sys.argv[1] == "with", int(sys.argv[2]))


if __name__ == "__main__":
    main()
