"""A terminal whose last lines are a table, above which output scrolls.

No scroll region, no hidden cursor, no mode of the terminal is changed: at any moment the cursor stands at the
beginning of the line below the table, so nothing must be put right after a crash. Before output is written
the table is erased, and drawn again below the output, all in one write.

A line that has no end yet (a progress bar that ends in \\r, say) can't stand above the table: it is shown,
cut to the width, in the line above it, and written in full when its end has come.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

PENDING_LIMIT = 64 << 10  # bytes that are written at once
OPEN_LIMIT = (
    64 << 10
)  # a longer line without an end is written as it is, and there is no table meanwhile

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)")

Size = tuple[int, int]  # columns, lines


class Screen:
    """Writes output and table to a terminal; not safe for several threads.

    Args:
        write: writes bytes to the terminal.
        size: asks the terminal for its size.
        table: the lines of the table for that size: narrower than the terminal, and so few that an open line
            and the cursor's fit, too.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        size: Callable[[], Size],
        table: Callable[[Size], list[str]],
    ) -> None:
        self._write, self._size, self._table = write, size, table
        self._pending = bytearray()
        self._open = b""  # the output's last line, which has no end yet
        self._raw = False  # the beginning of that line has been written as it is
        self._drawn = 0  # lines below the output
        self._drawn_for: Size | None = None

    def output(self, data: bytes) -> None:
        """Takes output; it appears with the next `draw`, or at once when it is much."""
        self._pending += data
        if len(self._pending) > PENDING_LIMIT:
            self.draw()

    @property
    def is_waiting(self) -> bool:
        """Whether there is output that has not been written."""
        return bool(self._pending)

    def was_resized(self) -> bool:
        """Whether the terminal has another size than when the table was drawn."""
        return self._drawn_for is not None and self._size() != self._drawn_for

    def forget(self) -> None:
        """Somebody else has written to the terminal: the next table begins where the cursor is now."""
        self._drawn = 0

    def draw(self) -> None:
        """Writes the output that has come, and the table as it is now."""
        size = self._size()
        finished = self._take_finished()
        if self._raw:
            if finished:
                self._write(self._erase() + finished)
            return
        lines = self._table(size)
        if self._open:
            lines = [_shown(self._open, size[0] - 1), *lines]
        self._finish(size, finished, lines)

    def close(self) -> None:
        """Writes all output, and the table for the last time, below it."""
        size = self._size()
        finished = self._take_finished() + self._open
        self._open = b""
        if self._raw or (finished and not finished.endswith(b"\n")):
            finished += b"\n"
        self._raw = False
        self._finish(size, finished, self._table(size))

    def _finish(self, size: Size, finished: bytes, lines: list[str]) -> None:
        # Without output the lines are written over each other: nothing flickers.
        begin = self._erase() + finished if finished else self._to_top()
        text = "".join(f"{line}\x1b[K\r\n" for line in lines) + "\x1b[J"
        self._write(begin + text.encode(errors="replace"))
        self._drawn = len(lines)
        self._drawn_for = size

    def _take_finished(self) -> bytes:
        """What is to be written above the table: whole lines, or a piece of a very long one."""
        # What comes after a \r is written over what stands before it.
        kept = b"" if self._open.endswith(b"\r") and self._pending else self._open
        finished, newline, rest = (kept + bytes(self._pending)).rpartition(b"\n")
        self._pending.clear()
        self._open = b""
        if newline:
            self._raw = False
        if self._raw or len(rest) > OPEN_LIMIT:
            self._raw = True
            return finished + newline + rest
        self._open = _last_overwritten(rest)
        return finished + newline

    def _erase(self) -> bytes:
        begin = self._to_top() + b"\x1b[J" if self._drawn else b""
        self._drawn = 0
        return begin

    def _to_top(self) -> bytes:
        """To the first of the lines that were drawn; what the user has typed may stand below them.

        If the terminal has become narrower, some terminals wrap the old lines, which then are more. The upper
        ones stay, but nothing of the output is lost.
        """
        return b"\r\x1b[%dA" % self._drawn if self._drawn else b""


def _last_overwritten(rest: bytes) -> bytes:
    """What can be seen of a line in which \\r went back to the beginning, and whether it ends with one."""
    body = rest.rstrip(b"\r")
    ending = b"\r" if len(body) < len(rest) else b""
    return body.rpartition(b"\r")[2] + ending if body else b""


def _shown(line: bytes, columns: int) -> str:
    """A line as one line of the screen: without escapes, no wider than `columns`."""
    text = _ESCAPES.sub("", line.decode(errors="replace")).expandtabs()
    shown, width = [], 0
    for character in text:
        if not character.isprintable():
            continue
        own = _width(character)
        if width + own > columns:
            break
        shown.append(character)
        width += own
    return "".join(shown)


def _width(text: str) -> int:
    """Columns that a terminal needs for a text."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
