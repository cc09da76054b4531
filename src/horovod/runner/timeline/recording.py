"""What one rank recorded: its operations, steps, and the times in which callers were blocked."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from horovod.runner.timeline.errors import TimelineError
from horovod.runner.timeline.events import Event, EventReader
from horovod.runner.timeline.header import Header, parse_header
from horovod.runner.timeline.intervals import Interval
from horovod.runner.timeline.job import LONGEST_PAUSE_MICROS, Part, RankFiles

NEGOTIATE = "NEGOTIATE_"
WAIT = "WAIT"
QUEUE = "QUEUE"
WAIT_FOR_DATA = "WAIT_FOR_DATA"
STEP = "STEP"


@dataclass(slots=True)
class Operation:
    """One collective on one tensor, as one rank saw it; times in microseconds since the base.

    What did not happen before the recording ended is nan.
    """

    name: str
    kind: str
    announced: float  # when the first rank was known to be ready
    marks: array[float] = field(
        default_factory=lambda: array("d")
    )  # rank, when it was ready, rank, ...
    negotiated: float = math.nan
    execute_begin: float = math.nan
    execute_end: float = math.nan
    data_waits: list[Interval] = field(default_factory=list)  # within execution, for others' data
    end: float = math.nan
    bytes: int = 0
    dtype: str = ""
    fused: int = 1
    response: int | None = None

    @property
    def ready(self) -> dict[int, float]:
        """When each rank was ready, as far as this rank knows; the first word counts."""
        marks = self.marks
        return {int(marks[i]): marks[i + 1] for i in range(len(marks) - 2, -1, -2)}


@dataclass
class Recording:
    """All that the files of one rank tell; times in microseconds since `base` on rank 0's clock."""

    header: Header
    begin: float = math.inf
    end: float = -math.inf
    operations: list[Operation] = field(default_factory=list)  # in the order of their ends
    unfinished: list[Operation] = field(default_factory=list)
    steps: list[tuple[int, float]] = field(default_factory=list)  # number, begin
    blocked: list[Interval] = field(default_factory=list)
    blocked_on: dict[str, float] = field(default_factory=dict)  # tensor name: microseconds
    cycles: int = 0
    has_waits: bool = False
    notes: list[str] = field(default_factory=list)


def read_recording(files: RankFiles, base: int) -> Recording:
    """Reads all files of a rank. Raises TimelineError with file and line."""
    recording = Recording(files.header)
    assembler = _Assembler(recording)
    for part in files.parts:
        older = part is not files.parts[-1]
        try:
            assembler.read(part, base, newest=not older)
        except TimelineError as error:
            if not older:
                raise
            recording.notes.append(f"{error}; the rest of this older file is left out")
        if older and _pause(recording, files.header, base) > LONGEST_PAUSE_MICROS:
            recording = Recording(files.header)
            recording.notes.append(
                f"{part.path}: ends long before {files.path.name} begins, so it is of another recording; "
                "it is left out"
            )
            assembler = _Assembler(recording)
    assembler.finish()
    return recording


def _pause(recording: Recording, newest: Header, base: int) -> float:
    return newest.shift(base) - recording.end


@dataclass(slots=True)
class _Row:
    """The state of one (pid, tid)."""

    open: list[str] = field(default_factory=list)
    since: float = 0.0  # when the outermost of `open` began
    inner: float = 0.0  # when the innermost did
    last: float = -math.inf  # ts of the last event
    waits_for: str | None = None
    has_activity: bool = False  # within the operation that is open
    operation: Operation | None = None


class _Assembler:
    """Takes events in file order and puts operations together."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._names: dict[Any, str] = {}
        self._rows: dict[tuple[Any, Any], _Row] = {}
        # Operations that were cut in two by the end of an older file, by tensor name.
        self._cut: dict[str, Operation] = {}
        self._newest = True
        self._shift = 0.0

    def read(self, part: Part, base: int, *, newest: bool) -> None:
        """Takes all events of a file."""
        reader = EventReader(part.path)
        self._shift = part.header.shift(base)
        self._recording.begin = min(self._recording.begin, self._shift)
        self._newest = newest
        self._names, self._rows = {}, {}
        act: dict[str, Callable[[Event, EventReader], None]] = {
            "B": self._begin,
            "E": self._end,
            "X": self._mark,
            "i": self._instant,
            "M": self._metadata,
        }
        events = iter(reader)
        parse_header(next(events), reader)
        for event in events:
            if (handler := act.get(event["ph"])) is not None:
                handler(event, reader)
        self._recording.notes += reader.notes
        self._close_rows()

    def finish(self) -> None:
        """Everything has been read."""
        recording = self._recording
        recording.unfinished += self._cut.values()
        recording.end = max(recording.end, recording.begin)
        recording.steps.sort(key=lambda step: step[1])

    def _time(self, event: Event, reader: EventReader) -> float:
        ts = event.get("ts")
        if (
            not (type(ts) is float or type(ts) is int) or ts - ts != 0
        ):  # of nan and infinity it is nan
            raise reader.error(f"ts should be a number of microseconds, is {ts!r}")
        time: float = ts + self._shift
        if time > self._recording.end:
            self._recording.end = time
        return time

    def _row(self, event: Event, time: float, reader: EventReader) -> _Row:
        key = (event.get("pid"), event.get("tid"))
        try:
            row = self._rows[key]
        except KeyError:
            row = self._rows[key] = _new_row(key, reader)
        except TypeError:  # a list, say
            row = _new_row(key, reader)
        if time < row.last:
            raise reader.error(
                f"ts goes back by {row.last - time:.3f} microseconds on the row of pid {key[0]}"
            )
        row.last = time
        return row

    def _metadata(self, event: Event, _reader: EventReader) -> None:
        args = event.get("args")
        if event.get("name") == "process_name" and isinstance(args, dict):
            self._names[event.get("pid")] = str(args.get("name", ""))

    def _instant(self, event: Event, reader: EventReader) -> None:
        time = self._time(event, reader)
        if event.get("name") == STEP:
            number = (event.get("args") or {}).get("step")
            if not isinstance(number, int):
                raise reader.error(f"a STEP should have the number of the step, has {number!r}")
            self._recording.steps.append((number, time))
        elif event.get("name") == "CYCLE_START":
            self._recording.cycles += 1

    def _begin(self, event: Event, reader: EventReader) -> None:
        time = self._time(event, reader)
        row = self._row(event, time, reader)
        name = event.get("name")
        if not isinstance(name, str):
            raise reader.error(f"the name of an event should be a text, is {name!r}")
        depth = len(row.open)
        row.open.append(name)
        if depth == 0:
            row.since = time
            row.has_activity = False
            if name == WAIT:
                tensor = (event.get("args") or {}).get("tensor")
                row.waits_for = None if tensor is None else str(tensor)
            elif name.startswith(NEGOTIATE):
                row.operation = self._negotiating(
                    event.get("pid"), name.removeprefix(NEGOTIATE), time
                )
            else:
                row.operation = self._executing(event.get("pid"), row, name, time)
        elif row.operation is not None:
            row.inner = time
            row.has_activity = True
            if depth == 1 and name != QUEUE and math.isnan(row.operation.execute_begin):
                row.operation.execute_begin = time

    def _end(self, event: Event, reader: EventReader) -> None:
        time = self._time(event, reader)
        row = self._row(event, time, reader)
        if not row.open:
            raise reader.error(f"an E without a B before it on the row of pid {event.get('pid')}")
        name = row.open.pop()
        if event.get("name") not in (None, name):
            raise reader.error(f"an E of {event['name']!r}, but {name!r} is open")
        self._ended(row, name, time, event.get("args"))

    def _mark(self, event: Event, reader: EventReader) -> None:
        time = self._time(event, reader)
        row = self._row(event, time, reader)
        name = event.get("name")
        if row.operation is not None and isinstance(name, str) and name.isdecimal():
            rank = int(name)
            if rank >= self._recording.header.size:
                size = self._recording.header.size
                raise reader.error(f"rank {rank} is ready, in a job of {size} ranks")
            row.operation.marks.extend((rank, time))

    def _negotiating(self, pid: Any, kind: str, time: float) -> Operation:
        name = self._names.get(pid, f"(pid {pid})")
        return self._cut.pop(name, None) or Operation(name, kind.lower(), time)

    def _executing(self, pid: Any, row: _Row, kind: str, time: float) -> Operation:
        operation = row.operation
        if operation is None:
            name = self._names.get(pid, f"(pid {pid})")
            operation = self._cut.pop(name, None) or Operation(name, kind.lower(), time)
        operation.kind = kind.lower()  # a mismatch becomes an ERROR
        return operation

    def _ended(self, row: _Row, name: str, time: float, args: Any) -> None:
        recording = self._recording
        operation = row.operation
        if not row.open and name == WAIT:
            self._was_blocked(row, time)
        elif operation is None:
            pass
        elif not row.open and name.startswith(NEGOTIATE):
            operation.negotiated = time
        elif not row.open:
            operation.end = time
            row.operation = None
            # Closed within its activity because the file was full. A barrier has none, and ends for good.
            if not self._newest and not args and row.has_activity:
                self._cut[operation.name] = operation
            else:
                _take_args(operation, args)
                recording.operations.append(operation)
        elif len(row.open) == 1 and name != QUEUE:
            operation.execute_end = time
        elif name == WAIT_FOR_DATA:
            operation.data_waits.append((row.inner, time))

    def _was_blocked(self, row: _Row, time: float) -> None:
        recording = self._recording
        recording.has_waits = True
        recording.blocked.append((row.since, time))
        if row.waits_for is not None:
            before = recording.blocked_on.get(row.waits_for, 0.0)
            recording.blocked_on[row.waits_for] = before + time - row.since

    def _close_rows(self) -> None:
        """At the end of a file: what is still going on goes on in the next file or is unfinished."""
        for row in self._rows.values():
            if row.open and row.open[0] == WAIT:
                self._was_blocked(row, self._recording.end)
            elif row.operation is not None and self._newest:
                self._recording.unfinished.append(row.operation)
            elif row.operation is not None:
                self._cut[row.operation.name] = row.operation


def _new_row(key: tuple[Any, Any], reader: EventReader) -> _Row:
    pid, tid = key
    if not isinstance(pid, int) or not (tid is None or isinstance(tid, int)):
        raise reader.error(f"pid and tid should be numbers, are {pid!r} and {tid!r}")
    return _Row()


def _take_args(operation: Operation, args: Any) -> None:
    """What the last event of an operation says about it."""
    if not isinstance(args, dict):
        return
    operation.dtype = str(args.get("dtype", ""))
    for name, least in (("bytes", 0), ("fused", 1), ("response", 0)):
        value = args.get(name)
        if isinstance(value, int) and value >= least:
            setattr(operation, name, value)
