"""Whether the events of a trace are nested as viewers expect."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from horovod.runner.timeline.events import Event


@dataclass
class _Row:
    """What is open on one (pid, tid), and how far it has come."""

    open: list[tuple[Any, int]] = field(default_factory=list)  # name of the B, number of the event
    last: float = -math.inf  # ts of the last event
    busy: float = -math.inf  # where the last X ended


def check_nesting(events: Iterable[Event], *, may_end_open: bool = False) -> list[str]:
    """What is wrong with the nesting of `events`, one text each; an empty list if nothing is.

    On each row, which is one (pid, tid): B and E are paired and of one name, `ts` does not decrease, and an X
    lies within an open B and ends before what follows. A file of a rank that was killed may end while rows
    are open: allow it with `may_end_open`. Events are counted from 1.
    """
    rows: dict[tuple[Any, Any], _Row] = {}
    faults: list[str] = []
    for number, event in enumerate(events, 1):
        if event.get("ph") not in ("B", "E", "X"):
            continue
        key = (event.get("pid"), event.get("tid"))
        row = rows.setdefault(key, _Row())
        faults += [f"event {number} on row {_name(key)}: {f}" for f in _step(row, event, number)]
    if not may_end_open:
        for key, row in rows.items():
            faults += [
                f"row {_name(key)}: {name!r} of event {n} is never ended" for name, n in row.open
            ]
    return faults


def _step(row: _Row, event: Event, number: int) -> list[str]:
    """Takes one event into a row; returns what is wrong with it."""
    name, ts = event.get("name"), event.get("ts")
    if isinstance(ts, bool) or not isinstance(ts, int | float) or not math.isfinite(ts):
        return [f"{event['ph']} {name!r} has no ts that is a number: {ts!r}"]
    faults = []
    if ts < row.last:
        faults.append(f"{event['ph']} {name!r} at {ts} comes after an event at {row.last}")
    elif ts < row.busy:
        faults.append(f"{event['ph']} {name!r} at {ts} lies within an X that ends at {row.busy}")
    row.last = max(row.last, ts)
    if event["ph"] == "B":
        row.open.append((name, number))
    elif event["ph"] == "E":
        if not row.open:
            return [*faults, f"E {name!r} ends nothing"]
        begun, _ = row.open.pop()
        if name is not None and name != begun:
            faults.append(f"E {name!r} ends {begun!r}")
    else:
        duration = event.get("dur", 0)
        if not row.open:
            faults.append(f"X {name!r} lies in no B")
        if not isinstance(duration, int | float) or not 0 <= duration < math.inf:
            faults.append(f"X {name!r} has a dur of {duration!r}")
        else:
            row.busy = max(row.busy, ts + duration)
    return faults


def _name(key: tuple[Any, Any]) -> str:
    pid, tid = key
    return f"{pid}" if tid is None else f"{pid}/{tid}"
