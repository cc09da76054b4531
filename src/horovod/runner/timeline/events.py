"""The events of one file, read line by line, so that the size of the file does not matter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from horovod.runner.timeline.errors import TimelineError, at

Event = dict[str, Any]

FIRST_BATCH = 8
BATCH = 2_000  # lines that are parsed at once
SHORTEST = 4  # bytes of a line that holds a bracket or a comma and no event

_CUT_OFF = "the file is cut off here; what stands before is used"


class EventReader:
    """Iterates over the events of a file and knows where it is.

    A file has one event per line. Other layouts of the same JSON are read as a whole, which takes more
    memory. A file that ends early is read up to there, with a line in `notes`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        self.closed = False  # the closing bracket was seen
        self._line: int | None = None
        self._comma = False  # a comma stands after the last event
        # Lines that were parsed at once, the number of the first, and which event of them was given last.
        self._batch: list[bytes] = []
        self._first = 0
        self._place = 0
        self._finished = False

    def error(self, text: str, column: int | None = None) -> TimelineError:
        """An error at the event that was read last."""
        line = self._line
        if self._batch:
            with_event = [i for i, raw in enumerate(self._batch) if len(raw) > SHORTEST]
            line = self._first + with_event[self._place]
        return at(self.path, line, column, text)

    def __iter__(self) -> Iterator[Event]:
        """Yields the events in file order. Raises TimelineError."""
        try:
            if self.path.is_dir():
                raise TimelineError(f"{self.path}: is a directory; give the files in it")
            with self.path.open("rb") as file:
                yield from self._events(file)
        except OSError as error:
            raise TimelineError(f"{self.path}: {error.strerror}") from None

    def _events(self, file: BinaryIO) -> Iterator[Event]:
        count = 0
        number = 1
        # Who wants only the first event is not to wait for many.
        while lines := list(islice(file, BATCH if number > 1 else FIRST_BATCH)):
            events = self._quick(lines, number, count)
            if events is not None:
                self._batch, self._first = lines, number
                for self._place, event in enumerate(events):
                    yield event
                self._batch, self._line = [], number + len(lines) - 1
                count += len(events)
            else:
                given = 0
                for event in self._one_by_one(lines, number, count, file):
                    given += 1
                    yield event
                if self._finished:
                    return
                count += given
            number += len(lines)
        if self._line is None:
            raise TimelineError(
                f"{self.path}: is empty; the job ended before it recorded anything, or nothing was recorded"
            )
        if count == 0:
            raise TimelineError(f"{self.path}: holds no event")
        if not self.closed:
            self.notes.append(
                str(self.error("the closing bracket is missing: the file is cut off here"))
            )

    def _quick(self, lines: list[bytes], number: int, count: int) -> list[Event] | None:
        """The events of many lines, parsed at once; None if there is anything unusual in them."""
        if self.closed or (count > 0) != self._comma:
            return None
        try:
            body = b"".join(lines).decode().strip()
        except UnicodeDecodeError:
            return None
        if number == 1:
            body = body.removeprefix("[").lstrip()
        inner = body.removesuffix("]").rstrip()
        closed, body = inner != body, inner
        inner = body.removesuffix(",")
        comma, body = inner != body, inner
        try:
            events = json.loads(f"[{body}]")
        except (json.JSONDecodeError, RecursionError):
            return None
        if len(events) != sum(len(raw) > SHORTEST for raw in lines):
            return None
        if not all(type(event) is dict and "ph" in event for event in events):
            return None
        self.closed, self._comma = closed, comma
        return events

    def _one_by_one(
        self, lines: list[bytes], first: int, count: int, file: BinaryIO
    ) -> Iterator[Event]:
        """The same, line by line; finds out where an error is."""
        for place, raw in enumerate(lines):
            self._line = first + place
            body, offset = self._body(raw, first=self._line == 1)
            if not body:
                continue
            if self.closed:
                raise self.error(
                    "text after the closing bracket; is it two files in one?", offset + 1
                )
            try:
                events = self._parse(body, offset, count)
            except json.JSONDecodeError as error:
                if count == 0:
                    yield from self._whole(file)
                    self._finished = True
                    return
                if _all_empty(lines[place + 1 :]) and _all_empty(file):
                    self.notes.append(str(self.error(_CUT_OFF, offset + error.colno)))
                    self._finished = True
                    return
                raise self.error(f"no JSON: {error.msg}", offset + error.colno) from None
            for event in events:
                count += 1
                yield event

    def _body(self, raw: bytes, *, first: bool) -> tuple[str, int]:
        """The text of a line without space around it and without the opening bracket; its column from 0."""
        try:
            text = raw.decode("utf-8-sig" if first else "utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"no UTF-8: {error.reason}", error.start + 1) from None
        left = text.lstrip()
        offset = len(text) - len(left)
        if first and left.startswith("["):
            stripped = left[1:].lstrip()
            offset += len(left) - len(stripped)
            left = stripped
        return left.rstrip(), offset

    def _parse(self, body: str, offset: int, count: int) -> list[Event]:
        """The events of a line, most often one. Raises json.JSONDecodeError."""
        if body.startswith(",") and count and not self._comma:
            self._comma = True
            body, offset = body[1:].lstrip(), offset + 1
        if body.endswith("]"):
            self.closed = True
            body = body[:-1].rstrip()
        comma = body.endswith(",")
        if comma:
            body = body[:-1].rstrip()
        if not body:
            return []
        if count and not self._comma:
            raise self.error("a comma is missing between this event and the one before", offset + 1)
        self._comma = comma
        try:
            try:
                events = [json.loads(body)]
            except json.JSONDecodeError as error:
                if error.msg != "Extra data":
                    raise
                events = json.loads(f"[{body}]")
        except json.JSONDecodeError:
            self.closed = False  # the bracket belonged to something else
            raise
        except RecursionError:
            raise self.error("no event of a timeline: nested too deep", offset + 1) from None
        for event in events:
            if not isinstance(event, dict) or ("ph" not in event and "traceEvents" not in event):
                raise self.error(f"no event of a timeline: {_short(event)}", offset + 1)
        if count == 0 and "traceEvents" in events[0]:
            events = events[0]["traceEvents"]
            self.closed = True
            self._check(events)
        return events

    def _whole(self, file: BinaryIO) -> Iterator[Event]:
        """The events of a file that does not have one per line."""
        file.seek(0)
        self._line = None
        try:
            content = json.loads(file.read().decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise TimelineError(
                f"{self.path}: byte {error.start}: no UTF-8: {error.reason}"
            ) from None
        except json.JSONDecodeError as error:
            raise at(self.path, error.lineno, error.colno, f"no JSON: {error.msg}") from None
        except RecursionError:
            raise TimelineError(f"{self.path}: no timeline: nested too deep") from None
        events = content.get("traceEvents") if isinstance(content, dict) else content
        self._check(events)
        if not events:
            raise TimelineError(f"{self.path}: holds no event")
        self.closed = True
        yield from events

    def _check(self, events: Any) -> None:
        if not isinstance(events, list):
            raise TimelineError(f"{self.path}: no timeline: a list of events is expected")
        for number, event in enumerate(events, 1):
            if not isinstance(event, dict) or "ph" not in event:
                raise TimelineError(
                    f"{self.path}: event {number}: no event of a timeline: {_short(event)}"
                )


def _all_empty(lines: Iterable[bytes]) -> bool:
    return not any(line.strip() for line in lines)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
