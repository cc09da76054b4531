"""Joins the timelines of the ranks into one trace for chrome://tracing or Perfetto."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horovod.runner.timeline.errors import TimelineError
from horovod.runner.timeline.events import Event, EventReader
from horovod.runner.timeline.header import MERGED, parse_header
from horovod.runner.timeline.job import (
    LONGEST_PAUSE_MICROS,
    Job,
    Part,
    RankFiles,
    check_same_time,
)

JOB_ROW = "job"  # what pid 0 of a file is called


@dataclass
class MergeResult:
    """What was written."""

    events: int = 0
    rows: int = 0
    notes: list[str] = field(default_factory=list)


def merge(job: Job, output: Path) -> MergeResult:
    """Writes the files of `job` as one trace to `output`, whole or not at all.

    Times are microseconds since the first file was begun, on rank 0's clock. Every row of every file is
    a process of its own, called like "rank 1: gradient". Rows that were open when a recording ended are
    closed there. Raises TimelineError for a file that can't be read, OSError if `output` can't be
    written.
    """
    result = MergeResult(notes=list(job.notes))
    base = min(part.header.start for files in job.ranks for part in files.parts)
    # In the clock of rank 0 a file may begin a little before; no time is to be below 0.
    base += math.floor(min(p.header.shift(base) for files in job.ranks for p in files.parts))
    temporary = output.with_name(f"{output.name}.{os.getpid()}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write("[\n")
            file.write(json.dumps(_first_event(job, base)))
            for event in _events(job, base, result):
                file.write(",\n")
                file.write(json.dumps(event, separators=(",", ":")))
                result.events += 1
            file.write("\n]\n")
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    return result


def _first_event(job: Job, base: int) -> Event:
    return {
        "name": "process_name",
        "ph": "M",
        "pid": 0,
        "args": {
            "name": MERGED,
            "start_time_since_epoch_in_micros": base,
            "size": job.size,
            "hosts": list(job.hosts),
            "ranks": [files.rank for files in job.ranks],
        },
    }


def _events(job: Job, base: int, result: MergeResult) -> Iterator[Event]:
    first: tuple[Path, float, float] | None = None
    for files in job.ranks:
        rank = _Rank(files, base, result)
        yield from rank.events()
        span = (files.path, rank.begin, rank.end)
        first = first or span
        check_same_time(first, span)


class _Rank:
    """Gives the events of one rank their new pids, names and times."""

    def __init__(self, files: RankFiles, base: int, result: MergeResult) -> None:
        self.begin = math.inf
        self.end = -math.inf
        self._files = files
        self._base = base
        self._result = result
        # In the merged trace: of row names, and of how many rows of that name it is; and back.
        self._pids: dict[tuple[str, int], int] = {}
        self._keys: dict[int, str] = {}
        self._last: dict[tuple[int, Any], float] = {}  # ts of the last event of each row

    def events(self) -> Iterator[Event]:
        """All events of the rank, its files one after the other."""
        for part in self._parts():
            yield from self._part(part)

    def _parts(self) -> tuple[Part, ...]:
        *older, newest = self._files.parts
        for part in older:
            end = _last_time(part.path)
            pause = newest.header.start - part.header.start - end
            if not -LONGEST_PAUSE_MICROS < pause < LONGEST_PAUSE_MICROS:
                self._result.notes.append(
                    f"{part.path}: is of another recording than {newest.path.name}; it is left out"
                )
                return (newest,)
        return self._files.parts

    def _part(self, part: Part) -> Iterator[Event]:
        reader = EventReader(part.path)
        shift = part.header.shift(self._base)
        pids: dict[Any, int] = {}  # of this file's pids
        stacks: dict[tuple[int, Any], list[str]] = {}
        events = iter(reader)
        parse_header(next(events), reader)
        yield from self._named(JOB_ROW, 0, pids)
        for event in events:
            old = event.get("pid")
            if event["ph"] == "M":
                if event.get("name") == "process_name":
                    yield from self._named(_args(event, reader).get("name"), old, pids)
                continue
            if event["ph"] not in ("B", "E", "X", "i"):
                continue
            if not isinstance(old, int) or not isinstance(event.get("tid", 0), int):
                raise reader.error(
                    f"pid and tid should be numbers, are {old!r} and {event.get('tid')!r}"
                )
            if old not in pids:
                yield from self._named(f"(pid {old})", old, pids)
            pid = pids[old]
            # Perfetto takes threads of different processes apart only if their numbers differ.
            tid = event.get("tid", pid)
            event["ts"] = self._time(event, shift, pid, tid, reader)
            event["pid"], event["tid"] = pid, tid
            if event["ph"] in "BE":
                _follow(stacks.setdefault((pid, tid), []), event, reader)
            yield event
        yield from self._closing(stacks)
        self._result.notes += reader.notes

    def _named(self, name: Any, old: Any, pids: dict[Any, int]) -> Iterator[Event]:
        """Gives the row that has pid `old` in its file its pid in the merged trace, and names it there."""
        text = str(name)
        # A tensor may be called like the row of the waits.
        key = (text, sum(self._keys.get(pid) == text for pid in pids.values()))
        if (pid := self._pids.get(key)) is None:
            self._result.rows += 1
            pid = self._pids[key] = self._result.rows
            self._keys[pid] = text
            for kind, value in (
                ("process_name", {"name": f"rank {self._files.rank}: {text}"}),
                ("process_labels", {"labels": self._files.header.host}),
                ("process_sort_index", {"sort_index": pid}),
            ):
                yield {"name": kind, "ph": "M", "pid": pid, "args": value}
        pids[old] = pid

    def _time(self, event: Event, shift: float, pid: int, tid: Any, reader: EventReader) -> float:
        ts = event.get("ts")
        if isinstance(ts, bool) or not isinstance(ts, int | float) or not math.isfinite(ts):
            raise reader.error(f"ts should be a number of microseconds, is {ts!r}")
        time = round(ts + shift, 3)
        if event["ph"] != "i":
            # Between two files of a rank its clock may have been set back a little.
            time = self._last[pid, tid] = max(time, self._last.get((pid, tid), 0.0))
        self.begin = min(self.begin, time)
        self.end = max(self.end, time)
        return time

    def _closing(self, stacks: dict[tuple[int, Any], list[str]]) -> Iterator[Event]:
        for (pid, tid), stack in stacks.items():
            while stack:
                yield {
                    "name": stack.pop(),
                    "ph": "E",
                    "ts": self.end,
                    "pid": pid,
                    "tid": tid,
                    "args": {"note": "the recording ended here"},
                }
            self._last[pid, tid] = max(self.end, self._last.get((pid, tid), 0.0))


def _follow(stack: list[str], event: Event, reader: EventReader) -> None:
    if event["ph"] == "B":
        stack.append(str(event.get("name")))
        return
    if not stack:
        raise reader.error(f"an E without a B before it on the row of pid {event.get('pid')}")
    name = stack.pop()
    if event.get("name") not in (None, name):
        raise reader.error(f"an E of {event['name']!r}, but {name!r} is open")


def _args(event: Event, reader: EventReader) -> dict[str, Any]:
    args = event.get("args")
    if not isinstance(args, dict):
        raise reader.error("process_name without args")
    return args


def _last_time(path: Path) -> float:
    """The greatest ts in a file, in microseconds; 0 if the file can't be read."""
    last = 0.0
    try:
        for event in EventReader(path):
            ts = event.get("ts")
            if isinstance(ts, int | float) and ts > last:
                last = ts
    except TimelineError:
        return last
    return last
