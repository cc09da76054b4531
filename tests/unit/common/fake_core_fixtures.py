"""Fixtures that put the stand-in in the place of the compiled core, so that no process is needed."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator

import pytest

if importlib.util.find_spec("horovod._core") is None:  # not compiled here: nothing to import
    sys.modules["horovod._core"] = types.ModuleType("horovod._core")

from fake_core import FakeCore

from horovod.common import collectives, connect, engine, observation, stacks
from horovod.common.bootstrap.kind import Identity
from horovod.common.process_sets import global_process_set


def _use(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (collectives, connect, engine, observation, stacks):
        monkeypatch.setattr(module, "_core", core)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    """The stand-in in place of the compiled core, with no engine running."""
    fake = FakeCore()
    _use(fake, monkeypatch)
    monkeypatch.setattr(engine, "state", engine.State())
    monkeypatch.setattr(collectives.engine, "state", engine.state)
    before = global_process_set.ranks
    collectives.begin_round()
    yield fake
    global_process_set.ranks = before
    collectives.begin_round()


@pytest.fixture
def world(core: FakeCore) -> Callable[[int, int], FakeCore]:
    """Makes this process look like rank r of n, as after init."""

    def become(rank: int, size: int) -> FakeCore:
        core.running = True
        engine.state.identity = Identity(rank, size, rank, size, 0, 1, "host")
        engine.state.dynamic_sets = True
        engine.state.active = True
        global_process_set.ranks = engine.record_set(0, list(range(size))).ranks
        collectives.begin_round()
        return core

    return become
