"""A terminal for tests of the monitor: pyte interprets what was written, scrolled-off lines included."""

from __future__ import annotations

import pyte


class Terminal:
    """What somebody in front of a terminal sees, and what they find when they scroll back."""

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.screen = pyte.HistoryScreen(columns, lines, history=100_000)
        self._stream = pyte.ByteStream(self.screen)

    @property
    def size(self) -> tuple[int, int]:
        return self.screen.columns, self.screen.lines

    def resize(self, columns: int, lines: int) -> None:
        """As xterm does: lines are cut, not wrapped, and of a lower one the top scrolls off if it must.

        (pyte's own way takes lines off the top even when there are empty ones at the bottom.)
        """
        screen = self.screen
        y = screen.cursor.y
        too_many = max(0, y - (lines - 1))
        screen.cursor.y = screen.lines - 1
        for _ in range(too_many):
            screen.index()
        screen.cursor.y = y - too_many
        for row in range(lines, screen.lines):
            screen.buffer.pop(row, None)
        screen.lines = lines
        screen.resize(lines, columns)

    def write(self, data: bytes) -> None:
        """As the kernel's terminal does, a line feed also returns to the first column."""
        self._stream.feed(data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))

    def feed(self, data: bytes) -> None:
        """What came out of a pseudo-terminal, where the kernel has done that already."""
        self._stream.feed(data)

    def visible(self) -> list[str]:
        """The lines of the screen down to the cursor's, which is left out when it is empty."""
        lines = [line.rstrip() for line in self.screen.display[: self.screen.cursor.y + 1]]
        return lines[:-1] if not lines[-1] else lines

    def everything(self) -> list[str]:
        """With the lines that have scrolled off."""
        columns = self.screen.columns
        above = [
            "".join(row[x].data for x in range(columns)).rstrip() for row in self.screen.history.top
        ]
        return above + self.visible()

    def cursor_is_sane(self) -> bool:
        """At the beginning of a line below which there is nothing, and visible."""
        cursor = self.screen.cursor
        below = self.screen.display[cursor.y :]
        return cursor.x == 0 and not cursor.hidden and not any(line.strip() for line in below)
