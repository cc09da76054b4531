"""From a recorded timeline to the program of each step: when which tensor was ready, and what was waited for.

Only what the prediction needs is read. Time that the rank was blocked is taken out, so what remains is the
rank's own computing, whatever the network of the recorded job was like.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from horovod.runner.scaling.programs import (
    Action,
    InputError,
    Program,
    Submit,
    Wait,
    Workload,
)

MICRO = 1e-6
MOST_STEPS = 50  # of one file; more would not change the median
_WARM_UP_STEPS = 2
_FEWEST_STEPS = 3  # below that nothing is left out


class Use(NamedTuple):
    """One allreduce of a tensor: seconds when this rank handed it in and when it was done."""

    name: str
    ready: float
    size: float
    end: float


class Blocked(NamedTuple):
    """The rank was blocked from `begin` to `end`, on a tensor if that is known."""

    begin: float
    end: float
    name: str | None


@dataclass
class Recording:
    """What one rank's file says."""

    path: Path
    rank: int
    size: int
    has_waits: bool = True  # blocked callers were recorded, if there were any
    uses: list[Use] = field(default_factory=list)
    waits: list[Blocked] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # operations of other kinds


def read_workload(paths: Sequence[Path]) -> tuple[Workload, list[str]]:
    """The recorded steps of a job, and sentences about what was left out.

    Of several ranks' files, the rank that computed longest counts in each step: the others waited for
    it.

    Raises:
        InputError: a file can't be read, is no timeline, or has no whole step.
    """
    recordings = [read_recording(path) for path in paths]
    by_rank: dict[int, list[Program]] = {}
    for recording in recordings:
        by_rank.setdefault(recording.rank, []).extend(programs_of(recording))
    notes = [
        f"{count} {kind.lower()} operations in {recording.path} are left out: only allreduce is predicted"
        for recording in recordings
        for kind, count in sorted(recording.others.items())
    ]
    slowest = [
        max(step, key=lambda program: program.compute)
        for step in zip(*by_rank.values(), strict=False)
    ]
    programs = _usual(slowest)
    size = max(recording.size for recording in recordings)
    name = paths[0].name
    source = f"{len(programs)} steps recorded on {size} rank{'' if size == 1 else 's'}"
    return Workload(name, source, tuple(programs)), notes


def read_recording(path: Path) -> Recording:
    """Reads one rank's timeline.

    Raises:
        InputError: it can't be read or is no timeline; the text has file and position.
    """
    events = _events(path)
    header = next((_arguments(e) for e in events if "rank" in _arguments(e)), {})
    rank, size = _integer(header.get("rank"), 0), _integer(header.get("size"), 1)
    recording = Recording(path, rank, size, has_waits="format" in header)
    names = {
        e.get("pid"): str(_arguments(e).get("name"))
        for e in events
        if e.get("ph") == "M" and e.get("name") == "process_name"
    }
    rows: dict[Any, _Row] = {}
    waiting = {e.get("pid") for e in events if e.get("name") == "WAIT" and e.get("ph") == "B"}
    open_waits: dict[Any, list[tuple[float, str | None]]] = {}
    for position, event in enumerate(events):
        phase, title = event.get("ph"), str(event.get("name", ""))
        if phase not in ("B", "E", "X"):
            continue
        stamp = event.get("ts")
        if not isinstance(stamp, int | float) or isinstance(stamp, bool):
            raise InputError(
                f"{path}: event {position + 1}: expected a number as ts, found {stamp!r}"
            )
        time, pid = stamp * MICRO, event.get("pid")
        if pid in waiting:
            _take_wait(recording, open_waits, (pid, event.get("tid")), event, time)
        elif pid in names and pid != 0:
            row = rows.setdefault(pid, _Row(names[pid], str(recording.rank)))
            row.take(phase, title, time, _arguments(event), recording)
    recording.uses.sort(key=lambda use: use.ready)
    recording.waits.sort(key=_begin)
    return recording


@dataclass
class _Row:
    """The events of one tensor: a stack, because a row is strictly nested."""

    name: str
    rank: str
    stack: list[str] = field(default_factory=list)
    ready: float | None = None

    def take(
        self, phase: str, title: str, time: float, arguments: dict[str, Any], recording: Recording
    ) -> None:
        if phase == "B":
            self.stack.append(title)
            if title.startswith("NEGOTIATE_"):
                self.ready = time
        elif phase == "X":
            # Rank 0's file marks all ranks; the row began with the first of them.
            if title == self.rank and self.stack and self.stack[-1].startswith("NEGOTIATE_"):
                self.ready = time
        elif self.stack:
            kind = self.stack.pop()
            if self.stack or kind.startswith("NEGOTIATE_") or self.ready is None:
                return
            if kind == "ALLREDUCE":
                size = arguments.get("bytes")
                if isinstance(size, int | float) and not isinstance(size, bool) and size >= 0:
                    recording.uses.append(Use(self.name, self.ready, float(size), time))
            elif kind not in ("ERROR", "JOIN", "BARRIER"):
                recording.others[kind] += 1
            self.ready = None


def _take_wait(
    recording: Recording,
    open_waits: dict[Any, list[tuple[float, str | None]]],
    row: Any,
    event: dict[str, Any],
    time: float,
) -> None:
    if event.get("ph") == "B":
        tensor = _arguments(event).get("tensor")
        open_waits.setdefault(row, []).append((time, None if tensor is None else str(tensor)))
    elif open_waits.get(row):
        begin, name = open_waits[row].pop()
        if not open_waits[row]:  # the outermost of nested ones
            recording.waits.append(Blocked(begin, time, name))


def programs_of(recording: Recording) -> list[Program]:
    """The whole steps of a recording, in order.

    A step begins when a tensor that was handed in during the step before comes again.
    """
    steps: list[list[Use]] = []
    seen: set[str] = set()
    for use in recording.uses:
        if not steps or use.name in seen:
            steps.append([])
            seen = set()
        steps[-1].append(use)
        seen.add(use.name)
    waits = recording.waits if recording.has_waits else _waits_from_ends(steps)
    programs = [_program(step, following[0].ready, waits) for step, following in pairwise(steps)]
    if not programs:
        raise InputError(
            f"{recording.path}: expected at least two training steps (the same tensor handed in "
            f"again), found {len(recording.uses)} allreduce operations; record some more steps, and "
            "give tensors names that stay the same"
        )
    return programs


def _waits_from_ends(steps: Sequence[Sequence[Use]]) -> list[Blocked]:
    """For files without WAIT rows: after its last tensor the rank waits until all are done."""
    found = []
    for step in steps:
        last = max(use.ready for use in step)
        found.append(Blocked(last, max(last, *(use.end for use in step)), None))
    return found


def _program(step: Sequence[Use], end: float, waits: Sequence[Blocked]) -> Program:
    begin, last = step[0].ready, step[-1].ready
    inside = _merged(wait for wait in waits if begin <= wait.begin < end)
    events: list[tuple[float, Use | Blocked]] = [(use.ready, use) for use in step]
    events += [(wait.begin, wait) for wait in inside]
    events.sort(key=lambda event: (event[0], isinstance(event[1], Blocked)))
    actions: list[Action] = []
    clock, needs_all = begin, True
    final = max((wait.begin for wait in inside if wait.begin >= last), default=None)
    for time, what in events:
        gap = max(0.0, time - clock)  # a submission by one thread while another is blocked: none
        clock = max(clock, time)
        if isinstance(what, Use):
            actions.append(Submit(gap, what.name, what.size))
            if needs_all and final is None and what is step[-1]:
                # Nothing had to be waited for here; on a slower network it would have to be.
                actions.append(Wait(0.0))
                needs_all = False
        else:
            is_final = final is not None and what.begin == final
            actions.append(Wait(gap, None if is_final else what.name))
            clock = max(clock, min(what.end, end))
    return Program(tuple(actions), max(0.0, end - clock))


def _begin(wait: Blocked) -> tuple[float, float]:
    return wait.begin, wait.end


def _merged(waits: Iterable[Blocked]) -> list[Blocked]:
    """Overlapping waits of several threads as one."""
    merged: list[Blocked] = []
    for wait in sorted(waits, key=_begin):
        if merged and wait.begin < merged[-1].end:
            before = merged.pop()
            name = before.name if before.name == wait.name else None
            merged.append(Blocked(before.begin, max(before.end, wait.end), name))
        else:
            merged.append(wait)
    return merged


def _usual(programs: Sequence[Program]) -> list[Program]:
    """The steps that are like most, without the first ones, which are slower, and not too many."""
    kept = list(programs)
    if len(kept) - _WARM_UP_STEPS >= _FEWEST_STEPS:
        kept = kept[_WARM_UP_STEPS:]
    usual = Counter((program.tensors, program.bytes) for program in kept).most_common(1)[0][0]
    kept = [program for program in kept if (program.tensors, program.bytes) == usual]
    stride = -(-len(kept) // MOST_STEPS)
    return kept[::stride]


def _events(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start}: expected UTF-8 text") from None
    if not text.strip():
        raise InputError(f"{path}: expected a timeline, found an empty file")
    try:
        events = json.loads(text)
    except json.JSONDecodeError as error:
        hint = ""
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            hint = "; the file seems to be cut off: copy it again"
        raise InputError(
            f"{path}: line {error.lineno}, column {error.colno}: expected a timeline, a JSON array of "
            f"events: {error.msg}{hint}"
        ) from None
    except RecursionError:
        raise InputError(f"{path}: expected a timeline, found JSON nested too deeply") from None
    if not isinstance(events, list):
        hint = "; give a model's description with --from-json" if isinstance(events, dict) else ""
        raise InputError(
            f"{path}: expected a timeline, a JSON array of events, found {type(events).__name__}{hint}"
        )
    for position, event in enumerate(events):
        if not isinstance(event, dict):
            raise InputError(
                f"{path}: event {position + 1}: expected an object, found {type(event).__name__}"
            )
    return events


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _integer(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
