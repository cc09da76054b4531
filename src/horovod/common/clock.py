"""How far the clock of this rank is ahead of rank 0's: what lays timelines of several hosts together."""

from __future__ import annotations

import math
import struct
import time
from ctypes import addressof, c_int64
from typing import NamedTuple

from horovod import _core
from horovod.common import engine
from horovod.common.dtypes import Collective, DataType

ROUNDS = 20


class ClockOffset(NamedTuple):
    """In microseconds."""

    offset: float  # this rank's clock less rank 0's
    error: float  # how far it may be off


def measure(rounds: int = ROUNDS) -> ClockOffset:
    """Compares the clock of this rank with rank 0's. Collective over all ranks.

    In each round rank 0 reads its clock after all ranks have entered a barrier, and this rank has the reading
    when it leaves the allgather that follows. So the reading was taken between two moments of this rank's
    clock; their middle is the estimate, half their distance its error (Cristian's algorithm). The round with
    the least error counts. Ranks of rank 0's host have its clock.
    """
    rank_of_zero_host = engine.identity().rank in next(iter(engine.host_ranks().values()))
    best = ClockOffset(0.0, 0.0) if rank_of_zero_host else ClockOffset(0.0, math.inf)
    for number in range(rounds):
        entered = time.time_ns()
        engine.control(Collective.BARRIER, f"horovod.clock.barrier.{number}")
        reading = _gather(time.time_ns(), f"horovod.clock.{number}")[0]
        left = time.time_ns()
        error = (left - entered) / 2000
        if error < best.error:
            best = ClockOffset(((entered + left) / 2 - reading) / 1000, error)
    return best


def _gather(value: int, name: str) -> list[int]:
    number = c_int64(value)
    handle = _core.submit(
        Collective.ALLGATHER,
        [name],
        [(addressof(number), DataType.INT64, (1,))],
        None,
        1,
        1.0,
        1.0,
        -1,
        None,
        0,
        "",
        -1,
        False,
        True,
        [],
    )
    outputs, _ = _core.wait(handle)
    content = bytes(memoryview(outputs[0][0]))
    return list(struct.unpack(f"={len(content) // 8}q", content))
