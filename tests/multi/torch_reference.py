"""The independent reference of the torch tests: one process that has the data of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import horovod.torch as hvd


def batch_of(rank: int, step: int, features: int = 6, rows: int = 4) -> tuple[Tensor, Tensor]:
    """The data of one rank in one step; any process can make it."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(rows, features, generator=generator, dtype=torch.float64)
    targets = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    return inputs, targets


def small_model(seed: int = 7) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 1, bias=False))
    return model.double()


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    inputs, targets = batch_of(rank, step)
    return (model(inputs) - targets).square().mean()


Optimize = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def train_alone(
    make: Optimize,
    steps: int,
    *,
    model: nn.Module | None = None,
    loss: Callable[[nn.Module, int, int], Tensor] = loss_of,
    passes: int = 1,
    summed: bool = False,
) -> nn.Module:
    """Trains on the data of all ranks, in this process alone."""
    model = small_model() if model is None else model
    optimizer = make(model.parameters())
    for step in range(steps):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            total = torch.zeros((), dtype=torch.float64)
            for part in range(passes):
                for rank in range(hvd.size()):
                    total = total + loss(model, rank, step * passes + part)
            total = total if summed else total / hvd.size()
            total.backward()
            return total

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return model


def train_together(
    make: Optimize,
    steps: int,
    *,
    model: nn.Module | None = None,
    loss: Callable[[nn.Module, int, int], Tensor] = loss_of,
    passes: int = 1,
    **options: Any,
) -> nn.Module:
    """Trains on this rank's data with a DistributedOptimizer."""
    model = small_model() if model is None else model
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        **options,
    )
    for step in range(steps):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            total = torch.zeros((), dtype=torch.float64)
            for part in range(passes):
                value = loss(model, hvd.rank(), step * passes + part)
                value.backward()
                total = total + value.detach()
            return total

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return model


def assert_same_parameters(ours: nn.Module, reference: nn.Module, **tolerances: Any) -> None:
    """Compares with the reference, and bit for bit with the other ranks."""
    for (name, mine), theirs in zip(ours.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(
            mine.data, theirs.data, msg=lambda m, n=name: f"{n}: {m}", **tolerances
        )
        everywhere = hvd.allgather(mine.data[None].contiguous())
        for other in everywhere:
            assert torch.equal(other, mine.data), f"{name} differs between ranks"
