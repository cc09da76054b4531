"""torch.amp.GradScaler with a DistributedOptimizer: all ranks agree on infinite gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch_reference import assert_same_parameters, loss_of, small_model

import horovod.torch as hvd

LAUNCHES = ["-np 1", "-np 2", "-np 4"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def make(parameters, fused=False):
    # Not SGD: when its first fused step is skipped, torch 2.13 leaves its momentum uninitialised.
    return torch.optim.Adam(parameters, lr=0.1, fused=fused)


def new_scaler():
    return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)


def poisoned(loss, infinite):
    return loss * float("inf") if infinite else loss


def train_alone(bad_steps, steps, clip=None, fused=False):
    model, scaler = small_model(), new_scaler()
    optimizer = make(model.parameters(), fused)
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum(loss_of(model, rank, step) for rank in range(hvd.size())) / hvd.size()
        scaler.scale(poisoned(loss, step in bad_steps)).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
    return model, scaler


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("clear", ["optimizer", "module"])
def test_the_usual_five_lines(fused, groups, clear):
    """One rank's infinity makes all ranks skip the step and halve the scale; then all goes on."""
    model, scaler = small_model(), new_scaler()
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters(), fused), model.named_parameters(), groups=groups
    )
    bad_rank, bad_steps = hvd.size() - 1, (0, 3, 4)
    for step in range(8):
        (optimizer if clear == "optimizer" else model).zero_grad()
        loss = poisoned(
            loss_of(model, hvd.rank(), step), step in bad_steps and hvd.rank() == bad_rank
        )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert not optimizer._reducer.in_flight
    reference, reference_scaler = train_alone(bad_steps, 8, fused=fused)
    assert scaler.get_scale() == reference_scaler.get_scale()
    assert_same_parameters(model, reference)


@pytest.mark.parametrize("explicit", [True, False], ids=["synchronize first", "unscale_ alone"])
def test_unscale_and_clip(explicit):
    model, scaler = small_model(), new_scaler()
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    for step in range(5):
        optimizer.zero_grad()
        bad = step == 2 and hvd.rank() == 0
        scaler.scale(poisoned(loss_of(model, hvd.rank(), step), bad)).backward()
        if explicit:
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        if explicit:
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
    reference, _ = train_alone((2,), 5, clip=0.05)
    assert_same_parameters(model, reference)


def test_accumulation_with_a_scaler():
    model, scaler = small_model(), new_scaler()
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), backward_passes_per_step=2
    )
    reference, alone_scaler = small_model(), new_scaler()
    alone = make(reference.parameters())
    for step, passes in enumerate((2, 1, 2)):
        optimizer.zero_grad()
        alone.zero_grad()
        for part in range(passes):
            bad = (step, part, hvd.rank()) == (0, 0, 0)
            scaler.scale(poisoned(loss_of(model, hvd.rank(), part), bad)).backward()
            loss = sum(loss_of(reference, rank, part) for rank in range(hvd.size())) / hvd.size()
            alone_scaler.scale(poisoned(loss, (step, part) == (0, 0))).backward()
        for some_scaler, some in ((scaler, optimizer), (alone_scaler, alone)):
            some_scaler.step(some)
            some_scaler.update()
    assert_same_parameters(model, reference)


def test_a_disabled_scaler_changes_nothing():
    model, scaler = small_model(), torch.amp.GradScaler("cpu", enabled=False)
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    reference = small_model()
    alone = make(reference.parameters())
    for step in range(2):
        optimizer.zero_grad()
        alone.zero_grad()
        scaler.scale(loss_of(model, hvd.rank(), step)).backward()
        scaler.step(optimizer)
        scaler.update()
        (sum(loss_of(reference, rank, step) for rank in range(hvd.size())) / hvd.size()).backward()
        alone.step()
    assert_same_parameters(model, reference)


def test_other_optimizers_keep_using_the_scaler_as_before():
    model, scaler = small_model(), new_scaler()
    hvd.DistributedOptimizer(make(small_model().parameters()))
    optimizer = make(model.parameters())
    scaler.scale(loss_of(model, 0, 0)).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    reference = small_model()
    plain = make(reference.parameters())
    loss_of(reference, 0, 0).backward()
    plain.step()
    assert_same_parameters(model, reference)


def test_autocast_to_bfloat16_trains_alike_on_all_ranks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    scaler = new_scaler()
    generator = torch.Generator().manual_seed(hvd.rank())
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(4, 6, generator=generator)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    for parameter in model.parameters():
        assert torch.equal(hvd.broadcast(parameter.data, 0), parameter.data)
        assert parameter.isfinite().all()
