"""Collects the ranks' snapshots; written by the store's thread, read by the driver's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from horovod.runner.monitor.figures import (
    Figures,
    Mark,
    Rates,
    keep_marks,
    keep_recent,
    rates_between,
    state_of,
    step_rate,
)
from horovod.runner.monitor.snapshot import Snapshot, decode


@dataclass(slots=True)
class _Rank:
    """What is known of one rank."""

    host: str = "?"
    exit_code: int | None = None
    arrived: float = 0.0  # when the last snapshot came
    first: Snapshot | None = None  # of this round
    recent: list[Snapshot] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def last(self) -> Snapshot | None:
        return self.recent[-1] if self.recent else None

    def take(self, snapshot: Snapshot, now: float) -> None:
        if self.last is not None and snapshot.round != self.last.round:
            self.recent, self.marks, self.first = [], [], None
        self.arrived = now
        self.first = self.first or snapshot
        self.recent = keep_recent([*self.recent, snapshot])
        if not self.marks or snapshot.steps > self.marks[-1].step:
            self.marks = keep_marks([*self.marks, Mark(snapshot.time, snapshot.steps)])

    def rates(self) -> Rates:
        """Of the last seconds."""
        if not self.recent:
            return Rates(None, None, None)
        steps = step_rate(self.marks, self.recent[-1].time)
        return rates_between(self.recent[0], self.recent[-1])._replace(steps=steps)

    def averages(self) -> Rates:
        """Since the first snapshot."""
        if self.first is None:
            return Rates(None, None, None)
        return rates_between(self.first, self.recent[-1])


class Board:
    """All ranks of a job.

    Args:
        size: number of ranks.
        clock: seconds of a monotonic clock.
    """

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._ranks = [_Rank() for _ in range(size)]
        self._clock = clock
        self._lock = threading.Lock()

    def take(self, key: str, value: bytes) -> None:
        """A snapshot from the rank with the number `key`.

        Raises:
            ValueError: there is no such rank, or the snapshot makes no sense.
        """
        if not (
            key.isascii() and key.isdigit() and int(key[:9]) < len(self._ranks) and len(key) < 9
        ):
            raise ValueError(f"there is no rank {key[:20]!r} of {len(self._ranks)}")
        snapshot = decode(value)
        with self._lock:
            self._ranks[int(key)].take(snapshot, self._clock())

    def started(self, rank: int, host: str) -> None:
        """The process of a rank runs on that host."""
        with self._lock:
            self._ranks[rank].host = host

    def ended(self, rank: int, code: int) -> None:
        """The process of a rank ended with that status, as a shell reports it."""
        with self._lock:
            self._ranks[rank].exit_code = code

    def rows(self) -> list[Figures]:
        """All ranks now, by number."""
        return self._figures(_Rank.rates)

    def summary(self) -> list[Figures]:
        """All ranks by number, with averages over the whole time instead of the last seconds."""
        return self._figures(_Rank.averages)

    def _figures(self, rates_of: Callable[[_Rank], Rates]) -> list[Figures]:
        now = self._clock()
        with self._lock:
            late: dict[int, float] = {}
            for rank in self._ranks:
                if rank.last is not None:
                    late.update(rank.last.late)
            return [
                _row(number, rank, rates_of(rank), late.get(number, 0.0), now)
                for number, rank in enumerate(self._ranks)
            ]


def _row(number: int, rank: _Rank, rates: Rates, late: float, now: float) -> Figures:
    last = rank.last
    state, trouble = state_of(last, now - rank.arrived, rank.exit_code)
    return Figures(
        rank=number,
        host=rank.host,
        step=last and last.steps,
        step_rate=rates.steps,
        bytes_rate=rates.bytes,
        waiting=rates.waiting,
        in_flight=last and last.in_flight,
        memory=last and last.memory,
        stalls=last and last.stalls,
        late=late,
        state=state,
        trouble=trouble,
    )
