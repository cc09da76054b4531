"""What the table shows of one rank, made of its snapshots; pure functions.

Durations are measured by the rank's own clock, silence by the launcher's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from horovod.runner.monitor.snapshot import Snapshot

WINDOW_SECONDS = 10.0  # over which rates are taken
SILENT_AFTER = 5.0  # seconds without a snapshot; a rank sends one every second


class Trouble(IntEnum):
    """How much a rank needs to be looked at."""

    NONE = 0
    LEFT = 1  # it has shut down or ended as it should
    ABSENT = 2  # it has not initialised Horovod
    SILENT = 3
    FAILED = 4


class Figures(NamedTuple):
    """A row of the table; None: not known."""

    rank: int
    host: str
    step: int | None = None
    step_rate: float | None = None  # per second
    bytes_rate: float | None = None  # per second
    waiting: float | None = None  # share of the time in which a caller was blocked; 1 = always
    in_flight: int | None = None
    memory: int | None = None  # bytes
    stalls: int | None = None
    late: float = 0.0  # seconds that the others waited for it lately
    state: str = ""
    trouble: Trouble = Trouble.NONE


class Rates(NamedTuple):
    """Per second, between two moments."""

    steps: float | None
    bytes: float | None
    waiting: float | None


class Mark(NamedTuple):
    """When a rank was first seen in a step."""

    time: float
    step: int


def keep_recent(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """The snapshots of the last window and the one before it, so that they span all of the window."""
    begin = snapshots[-1].time - WINDOW_SECONDS
    older = [place for place, one in enumerate(snapshots) if one.time <= begin]
    return list(snapshots[older[-1] if older else 0 :])


def keep_marks(marks: Sequence[Mark]) -> list[Mark]:
    """The marks of the last window before the last mark, and at least two if there are two."""
    begin = marks[-1].time - WINDOW_SECONDS
    recent = [mark for mark in marks if mark.time >= begin]
    return recent if len(recent) > 1 else list(marks[-2:])


def step_rate(marks: Sequence[Mark], now: float) -> float | None:
    """Steps per second, from the moments at which steps began; None as long as two are not known.

    A step that takes longer than the ones before lowers the rate, and a rank that hangs has less and less.
    """
    if len(marks) < 2:
        return None
    first, last = marks[0], marks[-1]
    rate = (last.step - first.step) / (last.time - first.time)
    since = now - last.time
    return min(rate, 1.0 / since) if since > 0 else rate


def rates_between(old: Snapshot, new: Snapshot) -> Rates:
    """Averages between two snapshots of one round; None where no time has passed."""
    seconds = new.time - old.time
    if seconds <= 0:
        return Rates(None, None, None)
    return Rates(
        max(0.0, (new.steps - old.steps) / seconds),
        max(0.0, (new.bytes - old.bytes) / seconds),
        max(0.0, (new.wait - old.wait) / seconds),
    )


def state_of(
    last: Snapshot | None, silent_seconds: float, exit_code: int | None
) -> tuple[str, Trouble]:
    """What is said about a rank beside its figures, and how bad it is.

    Args:
        last: its last snapshot.
        silent_seconds: since that came.
        exit_code: of its process; None while that runs.
    """
    if exit_code is not None:
        return ("ended", Trouble.LEFT) if exit_code == 0 else (f"exit {exit_code}", Trouble.FAILED)
    if last is None:
        return "not initialized", Trouble.ABSENT
    if last.final:
        return "shut down", Trouble.LEFT
    if silent_seconds > SILENT_AFTER:
        return f"silent {silent_seconds:.0f} s", Trouble.SILENT
    return "", Trouble.NONE


def worst_first(rows: Iterable[Figures]) -> list[Figures]:
    """Ranks that failed or fell silent, then those that the others wait for.

    That is: for which they waited longest; which are behind in their steps; which wait least themselves.
    """
    return sorted(
        rows,
        key=lambda row: (
            -row.trouble,
            -round(row.late, 1),
            float("inf") if row.step is None else row.step,
            float("inf") if row.waiting is None else round(row.waiting, 2),
            row.rank,
        ),
    )


class Total(NamedTuple):
    """The last row: all ranks together."""

    ranks: int
    hosts: int
    step: int | None  # of the rank that is behind
    step_rate: float | None  # of the slowest
    bytes_rate: float | None  # sum
    waiting: float | None  # mean
    in_flight: int | None  # sum
    memory: int | None  # sum
    stalls: int | None  # sum
    state: str  # how many are in trouble


def total_of(rows: Sequence[Figures]) -> Total:
    """Sums, means and least values over all ranks that have said something."""
    waiting = [row.waiting for row in rows if row.waiting is not None]
    names = {
        Trouble.FAILED: "failed",
        Trouble.SILENT: "silent",
        Trouble.ABSENT: "not initialized",
        Trouble.LEFT: "ended",
    }
    counts = {trouble: sum(row.trouble == trouble for row in rows) for trouble in names}
    return Total(
        ranks=len(rows),
        hosts=len({row.host for row in rows}),
        step=min((row.step for row in rows if row.step is not None), default=None),
        step_rate=min((row.step_rate for row in rows if row.step_rate is not None), default=None),
        bytes_rate=_sum([row.bytes_rate for row in rows]),
        waiting=sum(waiting) / len(waiting) if waiting else None,
        in_flight=_int_sum([row.in_flight for row in rows]),
        memory=_int_sum([row.memory for row in rows]),
        stalls=_int_sum([row.stalls for row in rows]),
        state=", ".join(
            f"{counts[trouble]} {name}" for trouble, name in names.items() if counts[trouble]
        ),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _int_sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
