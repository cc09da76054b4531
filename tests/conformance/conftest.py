"""Start the job once for all conformance tests; give each test a door and its ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from doors import DOORS, Door


@dataclass(frozen=True)
class World:
    """The job as the tests need it."""

    rank: int
    size: int
    one_host: bool

    @property
    def ranks(self) -> range:
        return range(self.size)


@functools.cache
def door_of(kind: type[Door]) -> Door:
    return kind()


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    import horovod.numpy as hvd

    hvd.init(process_sets="dynamic")
    yield World(hvd.rank(), hvd.size(), hvd.local_size() == hvd.size())
    hvd.shutdown()


@pytest.fixture(params=DOORS, ids=lambda kind: kind.name)
def door(request: pytest.FixtureRequest, world: World) -> Door:
    # One engine per process: what one door has started, every door uses.
    return door_of(request.param)


@pytest.fixture
def hvd(door: Door) -> Any:
    return door.hvd
