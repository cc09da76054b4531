"""The table of --monitor as the driver sees it: live at the bottom of a terminal, or printed now and then."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from horovod.runner.monitor.board import Board
from horovod.runner.monitor.screen import Screen, Size
from horovod.runner.monitor.table import LEAST_ROWS, Style, render
from horovod.runner.monitor.unwatched import Unwatched
from horovod.runner.output import ByteSink, Sink
from horovod.runner.plan import SNAPSHOT_SECONDS
from horovod.runner.protocol import STDERR, STDOUT

HURRY_SECONDS = 0.25  # between two looks at the ranks when some have just started or ended
LOG_WIDTH, LOG_HEIGHT = 120, 24

Clock = Callable[[], float]


class Monitor(Unwatched):
    """A table of the ranks. `say` and `take` may be called from other threads than the driver's.

    Attributes:
        take: takes a rank's snapshot; the store's function for the scope "monitor".
        sinks: where the workers' output goes.
    """

    sinks: dict[int, ByteSink]

    def __init__(self, size: int, clock: Clock) -> None:
        self._board = Board(size, clock)
        self._size = size
        self._clock = clock
        self._began = clock()
        self.take = self._board.take

    def started(self, rank: int, host: str) -> None:
        """The process of a rank runs."""
        self._board.started(rank, host)

    def ended(self, rank: int, code: int) -> None:
        """The process of a rank has ended with that status."""
        self._board.ended(rank, code)

    def say(self, text: str) -> None:
        """A line of the launcher itself."""
        raise NotImplementedError

    def close(self) -> None:
        """Shows the rest of the output, and the table for the last time, with averages."""
        raise NotImplementedError

    def _table(self, style: Style, final: bool) -> list[str]:
        rows = self._board.summary() if final else self._board.rows()
        seconds = int(self._clock() - self._began)
        elapsed = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        ranks = f"{self._size} rank{'s' if self._size != 1 else ''}"
        title = f"{ranks} after {elapsed}"
        return render(rows, f"{title}, averages" if final else title, style)


class LiveMonitor(Monitor):
    """The table is the last thing on the terminal; everything else scrolls above it.

    Args:
        size: number of ranks.
        terminal: standard error.
        shares: standard output is the same terminal.
        colours: ANSI colours may be used.
    """

    is_live = True
    next_at: float

    def __init__(
        self,
        size: int,
        terminal: TextIO,
        stdout: TextIO,
        shares: bool,
        colours: bool,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(size, clock)
        self._terminal = terminal
        self._style = Style(0, 0, colours, _ellipsis(terminal))
        self._screen = Screen(Sink(terminal).write, self._terminal_size, self._lines)
        self._shown: tuple[Size, list[str]] = ((0, 0), [])
        self._final = False
        self._is_lost = False
        self._lock = threading.Lock()
        self._looked_at = self.next_at = clock()
        on_screen = _Tap(self._output)
        self.sinks = {STDOUT: on_screen if shares else Sink(stdout), STDERR: on_screen}

    def started(self, rank: int, host: str) -> None:
        """The process of a rank runs; shown soon."""
        super().started(rank, host)
        self._hurry()

    def ended(self, rank: int, code: int) -> None:
        """The process of a rank has ended; shown soon."""
        super().ended(rank, code)
        self._hurry()

    def _hurry(self) -> None:
        # Not at once: a thousand ranks start one after the other.
        self.next_at = min(self.next_at, self._looked_at + HURRY_SECONDS)

    def say(self, text: str) -> None:
        """A line of the launcher itself; appears at once."""
        with self._lock:
            self._screen.output(f"horovodrun: {text}\n".encode(errors="replace"))
            self._screen.draw()

    def resumed(self) -> None:
        """Signal handler: the table is no longer where it was drawn."""
        self._is_lost = True

    def refresh(self) -> None:
        """Draws what is new."""
        with self._lock:
            if self._is_lost:
                self._is_lost = False
                self._screen.forget()
            now = self._clock()
            is_due = now >= self.next_at
            if is_due:
                self._looked_at = now
                self.next_at = now + SNAPSHOT_SECONDS
                self._shown = ((0, 0), [])
            if self._screen.is_waiting:
                self._screen.draw()
            elif is_due or self._screen.was_resized():
                try:
                    self._screen.draw()
                except OSError:
                    return  # the terminal has gone; its end is told by a signal

    def close(self) -> None:
        """Leaves the table as a summary; the cursor stands below it."""
        with self._lock:
            self._final = True
            self._shown = ((0, 0), [])
            self._screen.close()

    def _output(self, data: bytes) -> None:
        with self._lock:
            self._screen.output(data)

    def _lines(self, size: Size) -> list[str]:
        if self._shown[0] != size:
            style = self._style._replace(width=size[0] - 1, height=lines_for_table(size[1]))
            self._shown = (size, self._table(style, self._final))
        return self._shown[1]

    def _terminal_size(self) -> Size:
        try:
            columns, lines = os.get_terminal_size(self._terminal.fileno())
        except OSError:
            return 80, 24
        return columns or 80, lines or 24  # a terminal that does not know says 0


def lines_for_table(lines: int) -> int:
    """How much of a terminal the table may take: half of it, or a little more of a low one.

    One line is left for output without an end, one for the cursor, and one of the output.
    """
    return max(1, min(max(lines // 2, LEAST_ROWS + 2), lines - 3))


class LogMonitor(Monitor):
    """The table is printed to standard error every `every` seconds, and at the end."""

    def __init__(
        self, size: int, stderr: TextIO, stdout: TextIO, every: float, clock: Clock = time.monotonic
    ) -> None:
        super().__init__(size, clock)
        self._every = every
        self._style = Style(LOG_WIDTH, LOG_HEIGHT, ellipsis=_ellipsis(stderr))
        self._stderr = Sink(stderr)
        self._is_line_open = False
        self._lock = threading.Lock()
        self.next_at: float = clock() + every
        self.sinks = {STDOUT: Sink(stdout), STDERR: _Tap(self._output)}

    def say(self, text: str) -> None:
        """A line of the launcher itself."""
        self._print([f"horovodrun: {text}"])

    def refresh(self) -> None:
        """Prints the table when it is time."""
        now = self._clock()
        if now >= self.next_at:
            self.next_at = now + self._every
            self._print(self._table(self._style, final=False))

    def close(self) -> None:
        """Prints the table for the last time."""
        self._print(self._table(self._style, final=True))

    def _print(self, lines: list[str]) -> None:
        begin = "\n" if self._is_line_open else ""
        self._output((begin + "".join(f"{line}\n" for line in lines)).encode(errors="replace"))

    def _output(self, data: bytes) -> None:
        with self._lock:
            self._stderr.write(data)
            self._is_line_open = not data.endswith(b"\n")


class _Tap:
    """A sink that is a function."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self.write = take


def open_monitor(
    size: int,
    every: float,
    stdout: TextIO,
    stderr: TextIO,
    environment: Mapping[str, str],
) -> Monitor:
    """A live table where that is possible, else one that is printed every `every` seconds.

    Live needs a terminal as standard error, and nobody else who writes to it: what goes into a pipe (`| tee`)
    often comes out on the same terminal.
    """
    if not stderr.isatty() or environment.get("TERM") == "dumb":
        return LogMonitor(size, stderr, stdout, every)
    out, terminal = os.fstat(stdout.fileno()), os.fstat(stderr.fileno())
    if stat.S_ISFIFO(out.st_mode) or stat.S_ISSOCK(out.st_mode):
        return LogMonitor(size, stderr, stdout, every)
    shares = stat.S_ISCHR(out.st_mode) and out.st_rdev == terminal.st_rdev
    return LiveMonitor(size, stderr, stdout, shares, colours=not environment.get("NO_COLOR"))


def _ellipsis(stream: TextIO) -> str:
    try:
        "…".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "..."
    return "…"
