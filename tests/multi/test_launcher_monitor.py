"""horovodrun --monitor on a real pseudo-terminal: the table at the bottom, every line of output above it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from launcher_process import COMMAND, DEADLINE_SECONDS, launch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "runner"))
from monitor_terminal import Terminal

# How a drawing of the table ends, as monitor/screen.py writes it: its last line, and nothing below.
END_OF_TABLE = b"\r\n\x1b[J"
JOB = [sys.executable, str(Path(__file__).with_name("monitored_job.py"))]


class OnTerminal:
    """horovodrun with a pseudo-terminal as its standard output and error, or as its error only."""

    def __init__(
        self,
        *arguments: str,
        size: tuple[int, int] = (80, 24),
        stdout: int | None = None,
        **env: str,
    ) -> None:
        self.terminal = Terminal(*size)
        self.raw = bytearray()
        self._table: list[str] = []
        self._leader, follower = pty.openpty()
        self._set_size(*size)
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=follower,
            stdout=follower if stdout is None else stdout,
            stderr=follower,
            env={**os.environ, "TERM": "xterm-256color", **env},
            start_new_session=True,
            # Ctrl-C at the terminal must reach the launcher.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(follower)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._leader)

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self.terminal.resize(columns, lines)
        self._set_size(columns, lines)  # the kernel sends SIGWINCH

    def type(self, data: bytes) -> None:
        os.write(self._leader, data)

    def read(self, seconds: float) -> bool:
        """Takes what the terminal gets within that time; False at its end."""
        if select.select([self._leader], [], [], seconds)[0]:
            try:
                data = os.read(self._leader, 65536)
            except OSError:  # nobody holds the other end any more
                return False
            self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        """The kernel may hand out a drawing in pieces: remembers the table as it is when it is whole."""
        before = len(self.raw)
        self.raw += data
        end = self.raw.rfind(END_OF_TABLE, max(0, before + 1 - len(END_OF_TABLE)))
        if end >= 0:
            whole = end + len(END_OF_TABLE) - before
            self.terminal.feed(data[:whole])
            data = data[whole:]
            lines = self.terminal.visible()
            begins = [n for n, line in enumerate(lines) if re.match(r"\d+ ranks? after ", line)]
            self._table = lines[begins[-1] :] if begins else []
        self.terminal.feed(data)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "\n".join(self.terminal.everything())
            assert self.read(0.2) or condition(), "\n".join(self.terminal.everything())

    def finish(self) -> int:
        """Reads to the end; the exit status."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while self.read(0.2):
            assert time.monotonic() < deadline
        return self.process.wait(DEADLINE_SECONDS)

    def table(self) -> list[str]:
        """The last table that was drawn, all of it."""
        return self._table


def unwrapped(lines: list[str], columns: int, starts: str) -> list[str]:
    """Lines of output, of which the terminal had wrapped the long ones."""
    found: list[str] = []
    for line in lines:
        if re.match(starts, line) or not found:
            found.append(line)
        else:
            found[-1] = found[-1].ljust(columns * (1 + (len(found[-1]) - 1) // columns)) + line
    return found


def expected_lines(rank: int, count: int) -> set[str]:
    """Written once more by the worker itself, without a monitor."""
    done = launch(
        "-np", "1", *JOB, "lines", str(count), env={**os.environ, "HVD_AS_RANK": str(rank)}
    )
    assert done.returncode == 0
    texts = (done.stdout + done.stderr).decode().replace("\r", "\n").splitlines()
    return {line for line in texts if "line " in line}


@pytest.mark.parametrize("size", [(80, 24), (200, 12)])
def test_every_line_of_fast_output_arrives_intact_above_the_table(size: tuple[int, int]) -> None:
    count = 2000
    with OnTerminal("-np", "2", "--monitor", *JOB, "lines", str(count), size=size) as job:
        assert job.finish() == 0
        table = job.table()
        assert [line.split()[0] for line in table[1:]] == ["rank", "0", "1", "all"]
        assert job.terminal.cursor_is_sane()
        above = job.terminal.everything()[: -len(table)]
    seen = unwrapped(above, size[0], r"\[\d\]<std|Process|horovodrun")
    for rank in range(2):
        for stream, parity in (("stderr", 0), ("stdout", 1)):
            prefix = f"[{rank}]<{stream}>:line "
            numbers = [
                int(line[len(prefix) :].split()[0]) for line in seen if line.startswith(prefix)
            ]
            assert numbers == list(range(parity, count, 2))
    for line in seen:
        match = re.fullmatch(
            r"\[(\d)\]<std(?:out|err)>:line \d+ of rank (\d) x*", line.rstrip() + " "
        )
        assert match is None or match[1] == match[2]
    # The letters, too: their number follows from the worker's random numbers.
    lengths = {line for line in seen if line.startswith("[0]<stdout>:line ")}
    assert {line.rstrip() for line in lengths} == {
        line.rstrip() for line in expected_lines(0, count) if line.startswith("[0]<stdout>")
    }


def test_the_table_is_the_last_thing_on_the_screen_while_the_job_runs() -> None:
    with OnTerminal("-np", "2", "--monitor", *JOB, "hang") as job:
        job.until(lambda: any("<stdout>:hanging" in line for line in job.terminal.visible()))
        job.until(lambda: all("localhost" in line for line in job.table()[2:4]))
        job.until(lambda: len(job.table()) == 5)
        assert job.table()[-1].split()[0] == "all"
        assert job.terminal.cursor_is_sane()


def test_a_resize_is_followed_at_once() -> None:
    with OnTerminal("-np", "2", "--monitor", *JOB, "hang", size=(100, 24)) as job:
        job.until(lambda: "in flight" in "".join(job.table()))
        job.resize(30, 10)
        job.until(lambda: len(job.table()) == 5 and "in flight" not in "".join(job.table()))
        assert all(len(line) < 30 for line in job.table())
        job.resize(120, 30)
        job.until(lambda: "in flight" in "".join(job.table()))
        job.until(job.terminal.cursor_is_sane)


def test_ctrl_c_leaves_the_table_and_a_sane_cursor() -> None:
    with OnTerminal("-np", "2", "--monitor", *JOB, "hang") as job:
        job.until(lambda: "".join(job.terminal.visible()).count("<stdout>:hanging") == 2)
        job.type(b"\x03")
        assert job.finish() == 128 + signal.SIGINT
        assert "averages" in job.table()[0]
        assert job.terminal.cursor_is_sane()


def test_a_second_ctrl_c_leaves_a_sane_cursor_too() -> None:
    stubborn = (
        "import signal, time; signal.signal(2, signal.SIG_IGN); print('deaf', flush=True); "
        "time.sleep(99)"
    )
    with OnTerminal("-np", "1", "--monitor", sys.executable, "-c", stubborn) as job:
        job.until(lambda: "deaf" in "".join(job.terminal.visible()))
        job.type(b"\x03")
        time.sleep(0.5)  # two signals at once would be one
        job.type(b"\x03")
        assert job.finish() == 128 + signal.SIGINT
        assert job.table() and not job.terminal.screen.cursor.hidden
        # What was typed is echoed by the terminal itself, at the beginning of the line below the table.
        assert job.terminal.cursor_is_sane() or set(job.terminal.visible()[-1]) == set("^C")


def test_a_launcher_that_is_killed_leaves_a_sane_cursor() -> None:
    with OnTerminal("-np", "1", "--monitor", *JOB, "hang") as job:
        job.until(lambda: len(job.table()) == 4)
        job.process.kill()
        job.finish()
        assert job.terminal.cursor_is_sane()


def test_a_failure_is_in_the_table_and_its_report_stands_below() -> None:
    code = "import os, sys; sys.exit(3 * int(os.environ['HOROVOD_RANK']))"
    with OnTerminal("-np", "2", "--monitor", sys.executable, "-c", code, size=(120, 40)) as job:
        assert job.finish() == 3
        lines = job.terminal.everything()
    (row,) = [line for line in lines if line.startswith("   1  localhost")]
    assert row.endswith("exit 3")
    assert "Exit code: 3" in lines[lines.index(row) :]


def test_colours_are_used_unless_no_color_says_no() -> None:
    sgr = re.compile(rb"\x1b\[[0-9;]*m")
    for env, expected in (({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)):
        with OnTerminal("-np", "1", "--monitor", "true", **env) as job:
            assert job.finish() == 0
            assert bool(sgr.search(job.raw)) == expected


def test_standard_output_in_a_file_is_not_touched_and_the_table_is_live(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        job = OnTerminal("-np", "2", "--monitor", *JOB, "lines", "300", stdout=out.fileno())
        with job:
            assert job.finish() == 0
            assert b"\x1b[J" in job.raw and len(job.table()) == 5
    text = (tmp_path / "out").read_text()
    assert "\x1b" not in text and len(text.splitlines()) == 2 * 150


def test_without_a_terminal_the_table_is_printed_at_intervals_and_at_the_end() -> None:
    code = "import time; time.sleep(2.5)"
    done = launch(
        *("-np", "2", "--monitor", "--monitor-interval", "0.5", sys.executable, "-c", code)
    )
    text = done.stderr.decode()
    titles = re.findall(r"^2 ranks after 00:00:\d\d(?:, averages)?$", text, re.MULTILINE)
    assert len(titles) >= 4 and "averages" in titles[-1]
    assert "averages" not in "".join(titles[:-1])
    assert "\x1b" not in text and done.stdout == b""


def numbers(table: list[str]) -> dict[str, str]:
    """The total row by column."""
    columns = ["rank", "hosts", "_", "step", "rate", "bytes", "unit", "waiting"]
    return dict(zip(columns, table[-1].split(), strict=False))


def test_a_training_job_shows_steps_bytes_waiting_and_memory_of_each_rank() -> None:
    with OnTerminal("-np", "2", "--monitor", *JOB, "train", "6", size=(120, 30)) as job:
        job.until(lambda: bool(job.table()) and numbers(job.table())["rate"] not in ("-", "0.000"))
        live = job.table()
        assert job.finish() == 0, "\n".join(job.terminal.everything())
        summary = job.table()
    for table in (live, summary):
        for row in table[2:4]:
            assert re.search(r"localhost +\d+ +[\d.]+ +[\d.]+ [kM]B +\d+% ", row), row
            assert re.search(r" [\d.]+ MB +0", row), row
    assert int(numbers(summary)["step"]) > int(numbers(live)["step"]) >= 1
    assert "2 ended" in summary[-1]


def test_a_rank_that_stops_sending_is_shown_as_silent() -> None:
    code = (
        "import horovod.numpy as hvd, os, signal, sys\n"
        "hvd.init()\n"
        "print('pid', os.getpid(), 'waits', flush=True)\n"
        "signal.pause()\n"
    )
    with OnTerminal("-np", "2", "--monitor", sys.executable, "-c", code, size=(120, 30)) as job:
        pid = re.compile(r"\[1\]<stdout>:pid (\d+) waits")
        job.until(lambda: any(pid.match(line) for line in job.terminal.everything()))
        (stopped,) = [int(m[1]) for line in job.terminal.everything() if (m := pid.match(line))]
        os.kill(stopped, signal.SIGSTOP)
        try:
            job.until(lambda: bool(re.search(r"silent \d+ s", "".join(job.table()[3:4]))))
            assert "1 silent" in job.table()[-1]
        finally:
            os.kill(stopped, signal.SIGCONT)
        job.until(lambda: "silent" not in "".join(job.table()))


def test_without_the_flag_no_rank_has_a_thread_or_a_connection_for_it() -> None:
    code = (
        "import os, threading, horovod.numpy as hvd\n"
        "hvd.init()\n"
        "print(sorted(t.name for t in threading.enumerate()), 'HOROVOD_MONITOR' in os.environ)\n"
    )
    outer = {**os.environ, "HOROVOD_MONITOR": "1.0"}
    done = launch("-np", "2", sys.executable, "-c", code, env=outer)
    assert done.returncode == 0, done.stderr
    assert b"horovod-monitor" not in done.stdout and done.stdout.count(b"False") == 2
