"""Where the table goes: live on a terminal, or printed now and then."""

from __future__ import annotations

import io
import os
import pty
import sys
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from monitor_terminal import Terminal

from horovod.common.monitor_feed import snapshot
from horovod.runner.cli import parse_args
from horovod.runner.monitor.monitor import (
    LiveMonitor,
    LogMonitor,
    Monitor,
    lines_for_table,
    open_monitor,
)
from horovod.runner.output import Output
from horovod.runner.protocol import STDERR, STDOUT

SENT = {
    "steps": 7,
    "bytes": {"allreduce": 100},
    "wait_seconds": 0.5,
    "operations_in_flight": 3,
    "stalls": 0,
    "straggler_seconds": {},
}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Stream(io.TextIOWrapper):
    """A file in memory."""

    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def text(self) -> str:
        return self.buffer.getvalue().decode()


def give(monitor: Monitor, rank: int, steps: int, at: float) -> None:
    content = snapshot({**SENT, "steps": steps}, round_number=0, now=at, memory=10**9, final=False)
    monitor.take(str(rank), msgpack.packb(content))


# --- printed ---


def test_a_log_gets_a_table_at_every_interval_and_one_with_averages_at_the_end() -> None:
    clock, out, err = Clock(), Stream(), Stream()
    monitor = LogMonitor(2, err, out, 10.0, clock)
    monitor.started(0, "node1")
    monitor.started(1, "node1")
    for second in range(1, 26):
        clock.now = float(second)
        give(monitor, 0, 2 * second, clock.now)
        monitor.refresh()
    monitor.ended(0, 0)
    monitor.close()
    titles = [line for line in err.text().splitlines() if line.startswith("2 ranks")]
    assert titles == [
        "2 ranks after 00:00:10", "2 ranks after 00:00:20", "2 ranks after 00:00:25, averages",
    ]  # fmt: skip
    assert err.text().splitlines()[-3].split()[:4] == ["0", "node1", "50", "2.00"]
    assert "\x1b" not in err.text() and out.text() == ""


def test_output_passes_through_and_a_table_begins_on_a_line_of_its_own() -> None:
    clock, out, err = Clock(), Stream(), Stream()
    monitor = LogMonitor(1, err, out, 10.0, clock)
    output = Output(1, sinks=monitor.sinks)
    output.write(0, STDOUT, b"out\n")
    output.write(0, STDERR, b"50%\rrest")
    clock.now = 10.0
    monitor.refresh()
    output.close()
    monitor.say("note")
    lines = err.text().replace("\r", "\n").splitlines()
    assert lines[:3] == ["[0]<stderr>:50%", "", "1 rank after 00:00:10"]
    assert lines[-2:] == ["[0]<stderr>:rest", "horovodrun: note"]
    assert out.text() == "[0]<stdout>:out\n"


def test_an_encoding_without_an_ellipsis_gets_dots() -> None:
    for encoding, sign in (("ascii", "... 30 more"), ("utf-8", "… 30 more")):
        err = Stream(encoding)
        LogMonitor(50, err, Stream(), 1.0, Clock()).close()
        assert err.text().splitlines()[-2] == sign


# --- live ---


class Live:
    """A live monitor whose terminal is pyte's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shares: bool = True) -> None:
        self.terminal, self.clock, self.out, self.err = Terminal(), Clock(), Stream(), Stream()
        self.monitor = LiveMonitor(2, self.err, self.out, shares, False, self.clock)
        monkeypatch.setattr(self.monitor, "_terminal_size", lambda: self.terminal.size)
        self.monitor._screen._size = lambda: self.terminal.size
        self.monitor._screen._write = self.terminal.write
        self.output = Output(2, sinks=self.monitor.sinks)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Live:
    return Live(monkeypatch)


def test_output_of_both_streams_and_the_launchers_lines_stand_above_the_table(live: Live) -> None:
    live.monitor.refresh()
    live.output.write(0, STDOUT, b"a\n")
    live.output.write(1, STDERR, b"b\n")
    live.output.announce("Process 1 exit with status code 3.")
    live.monitor.refresh()
    live.monitor.say("waiting")
    assert live.terminal.everything()[:5] == [
        "[0]<stdout>:a", "[1]<stderr>:b", "Process 1 exit with status code 3.", "horovodrun: waiting",
        "2 ranks after 00:00:00",
    ]  # fmt: skip


def test_standard_output_that_goes_elsewhere_goes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live(monkeypatch, shares=False)
    live.output.write(0, STDOUT, b"a\n")
    live.output.write(0, STDERR, b"b\n")
    live.monitor.refresh()
    assert live.out.text() == "[0]<stdout>:a\n"
    assert live.terminal.everything()[0] == "[0]<stderr>:b"


def test_the_numbers_change_once_a_second_however_much_output_there_is(live: Live) -> None:
    for tick in range(30):
        live.clock.now = tick / 10
        give(live.monitor, 0, 10 * tick, live.clock.now)
        live.output.write(0, STDOUT, b"x\n")
        live.monitor.refresh()
        step = live.terminal.visible()[-3].split()[2]
        assert step == str(100 * (tick // 10))
    assert live.monitor.next_at == 3.0


def test_ranks_that_start_or_end_are_shown_soon_but_not_each_by_itself(live: Live) -> None:
    live.monitor.refresh()
    live.clock.now = 0.1
    for rank in range(2):
        live.monitor.started(rank, "node1")
    assert live.monitor.next_at == 0.25
    live.clock.now = 0.25
    live.monitor.refresh()
    assert all("node1" in line for line in live.terminal.visible()[2:4])
    live.monitor.ended(1, 0)
    assert live.monitor.next_at == 0.5


def test_a_resize_and_a_return_from_the_shell_are_noticed(live: Live) -> None:
    for rank in range(2):
        give(live.monitor, rank, 1, 0.0)
    live.monitor.refresh()
    live.terminal.resize(30, 24)
    live.monitor.refresh()
    assert len(live.terminal.everything()) == 5
    assert live.terminal.visible()[1].split() == ["rank", "step", "step/s", "waiting"]
    live.terminal.write(b"$ fg\n")
    live.monitor.resumed()
    live.clock.now = 1.0
    live.monitor.refresh()
    assert live.terminal.visible()[-6:-4] == ["$ fg", "2 ranks after 00:00:01"]


def test_a_terminal_that_has_gone_does_not_end_the_job(live: Live) -> None:
    def gone(_: bytes) -> None:
        raise OSError(5, "Input/output error")

    live.monitor._screen._write = gone
    live.monitor.refresh()
    live.output.write(0, STDERR, b"lost\n")
    with pytest.raises(OSError):  # as without a monitor: output that nobody can take is an error
        live.monitor.refresh()


def test_the_table_leaves_room_for_the_output() -> None:
    assert [lines_for_table(n) for n in (24, 50, 12, 9, 8, 5, 3, 1)] == [12, 25, 6, 6, 5, 2, 1, 1]


# --- which of the two ---


@pytest.fixture
def terminal() -> Iterator[io.TextIOWrapper]:
    leader, follower = pty.openpty()
    with open(follower, "w") as stream:
        yield stream
    os.close(leader)


@pytest.fixture
def other_terminal() -> Iterator[io.TextIOWrapper]:
    leader, follower = pty.openpty()
    with open(follower, "w") as stream:
        yield stream
    os.close(leader)


def shown(stdout: io.TextIOWrapper, stderr: io.TextIOWrapper, **env: str) -> Monitor:
    return open_monitor(1, 10.0, stdout, stderr, env)


def on_screen(monitor: Monitor) -> list[int]:
    """The streams that go through the screen."""
    return [stream for stream in (STDOUT, STDERR) if type(monitor.sinks[stream]).__name__ == "_Tap"]


def test_live_on_a_terminal(terminal, other_terminal, tmp_path: Path) -> None:
    assert on_screen(shown(terminal, terminal)) == [STDOUT, STDERR]
    assert on_screen(shown(other_terminal, terminal)) == [STDERR]
    with open(tmp_path / "log", "w") as file:
        assert isinstance(shown(file, terminal), LiveMonitor)
        assert isinstance(shown(terminal, file), LogMonitor)
    assert isinstance(shown(terminal, terminal, TERM="dumb"), LogMonitor)


def test_a_pipe_may_end_at_the_same_terminal_so_the_table_is_printed(terminal) -> None:
    reader, writer = os.pipe()
    with open(writer, "w") as stdout:
        assert isinstance(shown(stdout, terminal), LogMonitor)
    os.close(reader)


def test_colours_unless_no_color_says_no(terminal) -> None:
    def colours(**env: str) -> bool:
        monitor = shown(terminal, terminal, **env)
        assert isinstance(monitor, LiveMonitor)
        return monitor._style.colours

    assert colours() and colours(NO_COLOR="")
    assert not colours(NO_COLOR="1")


# --- flags ---


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    with pytest.raises(SystemExit):
        parse_args(["-np", "1", *flags, "true"])
    return capsys.readouterr().err


def test_where_ranks_do_not_report_to_horovodrun_the_flag_is_refused(capsys, monkeypatch) -> None:
    monkeypatch.setenv("LSB_JOBID", "1")
    assert "with --mpi they don't" in refusal(capsys, "--monitor", "--mpi")
    assert "with --jsrun they don't" in refusal(capsys, "--monitor", "--jsrun")


def test_the_interval_needs_the_monitor_and_a_sensible_number(capsys) -> None:
    assert "give --monitor, too" in refusal(capsys, "--monitor-interval", "5")
    for text in ("0", "-1", "nan", "1e9", "soon"):
        assert f"expected seconds from 0.1 to 86400, found '{text}'" in refusal(
            capsys, "--monitor", f"--monitor-interval={text}"
        )
    args = parse_args(["-np", "1", "--monitor", "--monitor-interval", "2.5", "true"])
    assert (args.monitor, args.monitor_interval) == (True, 2.5)


def test_without_the_flag_none_of_it_is_imported() -> None:
    import subprocess

    code = "import sys, horovod.runner.run_job; print([m for m in sys.modules if '.monitor.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().strip() == "['horovod.runner.monitor.unwatched']"
