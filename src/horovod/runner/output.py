"""The workers' output on the driver: prefixes, files per rank, and the last lines for the report."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, NamedTuple, Protocol, TextIO

from horovod.runner.protocol import STDERR, STDOUT

STREAM_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
HELD_BYTES = 1 << 20  # a longer line without an end is passed on in pieces
REMEMBERED_LINES = 20
REMEMBERED_BYTES = 2000  # of each of them


class Piece(NamedTuple):
    """A line with its end, or the rest of a line of which the beginning has been passed on."""

    data: bytes
    continued: bool


class LineSplitter:
    """Cuts a stream of bytes into whole lines, ends included; a line ends at \\n, \\r or \\r\\n.

    Only whole lines are passed on, so output of several ranks never mixes within a line nor within
    a character; lines longer than HELD_BYTES are the exception. The cuts do not depend on how the
    bytes arrive: after a \\r the next byte is awaited.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._cut_before = False

    def feed(self, data: bytes) -> list[Piece]:
        """The lines that are complete with `data`."""
        pieces: list[Piece] = []
        awaited = self._held.endswith(b"\r")
        self._held += data
        if awaited or b"\n" in data or b"\r" in data:
            # bytes.splitlines knows exactly these three ends (str.splitlines knows more).
            lines = bytes(self._held).splitlines(keepends=True)
            self._held = bytearray(b"" if lines[-1].endswith(b"\n") else lines.pop())
            pieces += [self._piece(line) for line in lines]
        if len(self._held) > HELD_BYTES:
            end = _character_end(self._held)
            pieces.append(self._piece(bytes(self._held[:end])))
            self._cut_before = True
            del self._held[:end]
        return pieces

    def flush(self) -> list[Piece]:
        """The line that has no end, when the stream has ended."""
        rest, self._held = bytes(self._held), bytearray()
        return [self._piece(rest)] if rest else []

    def _piece(self, data: bytes) -> Piece:
        continued, self._cut_before = self._cut_before, False
        return Piece(data, continued)


def _character_end(data: bytearray) -> int:
    """Where the last complete UTF-8 character of `data` ends."""
    start = len(data) - 1
    while start > len(data) - 4 and data[start] & 0xC0 == 0x80:
        start -= 1
    return start if data[start] >= 0xC0 else len(data)


class ByteSink(Protocol):
    """Where lines go."""

    def write(self, data: bytes, /) -> None:
        """Takes whole lines, and at times a part of one."""
        ...


class Sink:
    """The bytes below a text stream, or a text stream that has none (a notebook)."""

    def __init__(self, stream: TextIO) -> None:
        self._text = stream
        self._binary: IO[bytes] | None = getattr(stream, "buffer", None)

    def write(self, data: bytes) -> None:
        """Writes and flushes."""
        if self._binary is None:
            self._text.write(data.decode(errors="replace"))
        else:
            self._text.flush()
            self._binary.write(data)
        self._text.flush()


class Output:
    """All the output of a job."""

    def __init__(
        self,
        size: int,
        directory: str | None = None,
        timestamps: bool = False,
        sinks: Mapping[int, ByteSink] | None = None,
        clock: Callable[[], str] = time.asctime,
    ) -> None:
        self._sinks: Mapping[int, ByteSink] = sinks or {
            STDOUT: Sink(sys.stdout),
            STDERR: Sink(sys.stderr),
        }
        self._timestamps = timestamps
        self._clock = clock
        self._splitters: dict[tuple[int, int], LineSplitter] = {}
        self._last: dict[int, deque[bytes]] = {}
        self._files = _open_files(directory, size) if directory else {}

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Takes what a worker wrote."""
        if self._files:
            self._files[rank, stream].write(data)
        splitter = self._splitters.setdefault((rank, stream), LineSplitter())
        self._emit(rank, stream, splitter.feed(data))

    def announce(self, text: str) -> None:
        """A line of the launcher itself on standard output."""
        self._sinks[STDOUT].write(f"{text}\n".encode(errors="replace"))

    def end(self, rank: int) -> None:
        """The worker has ended: passes on lines without an end."""
        for stream in STREAM_NAMES:
            splitter = self._splitters.get((rank, stream))
            if splitter is not None:
                self._emit(rank, stream, splitter.flush())

    def close(self) -> None:
        """Ends all ranks and closes the files."""
        for rank in {rank for rank, _ in self._splitters}:
            self.end(rank)
        for file in self._files.values():
            file.close()

    def last_lines(self, rank: int) -> list[str]:
        """The last lines of a rank with their prefixes, both streams as they came."""
        return [line.decode(errors="replace") for line in self._last.get(rank, ())]

    def _emit(self, rank: int, stream: int, pieces: list[Piece]) -> None:
        if not pieces:
            return
        name = f"[{rank}]<{STREAM_NAMES[stream]}>:".encode()
        prefix = self._clock().encode() + name if self._timestamps else name
        last = self._last.setdefault(rank, deque(maxlen=REMEMBERED_LINES))
        text = bytearray()
        for data, continued in pieces:
            text += data if continued else prefix + data
            if line := data.rstrip():
                last.append(name + line[:REMEMBERED_BYTES])
        self._sinks[stream].write(bytes(text))


def _open_files(directory: str, size: int) -> dict[tuple[int, int], IO[bytes]]:
    """`<directory>/rank.<rank>/stdout` and `stderr`, the rank as wide as the greatest one."""
    width = len(str(size - 1))
    files: dict[tuple[int, int], IO[bytes]] = {}
    for rank in range(size):
        place = os.path.join(directory, f"rank.{rank:0{width}d}")
        os.makedirs(place, exist_ok=True)
        for stream, name in STREAM_NAMES.items():
            files[rank, stream] = open(os.path.join(place, name), "wb", buffering=0)  # noqa: SIM115
    return files
