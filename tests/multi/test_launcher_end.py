"""However a job ends, nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from launcher_process import RunningJob, launch, python, wait_until

REPETITIONS = int(os.environ.get("HVD_TEST_REPETITIONS", "3"))

# Each worker has a child in its group, a child in a session of its own, and a grandchild.
FAMILY = """
import os, signal, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
children.append(subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"]))
print("ready", os.environ["HOROVOD_RANK"], os.getpid())
"""
WAITING_FAMILY = FAMILY + "time.sleep(1000)\n"
STUBBORN_FAMILY = (
    FAMILY.replace(
        "sleep =",
        "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\nsleep =",
    )
    + "time.sleep(1000)\n"
)
TWO_HOSTS = ("-H", "localhost:2,127.0.0.1:2", "-np", "4")


def worker_pids(lines: list[str]) -> dict[int, int]:
    words = [line.split() for line in lines]
    return {int(rank): int(pid) for _, rank, pid in words}


@pytest.mark.parametrize("repetition", range(REPETITIONS))
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_launcher_ends_the_job(sent: signal.Signals, repetition: int) -> None:
    with RunningJob(*TWO_HOSTS, *python(WAITING_FAMILY)) as job:
        job.wait_for_lines("ready", 4)
        job.process.send_signal(sent)
        code, _, _ = job.finish()
        assert code == 128 + sent
        assert job.pids() == []


@pytest.mark.parametrize("repetition", range(REPETITIONS))
def test_sigkill_of_the_launcher_leaves_no_process(repetition: int) -> None:
    with RunningJob(*TWO_HOSTS, *python(WAITING_FAMILY)) as job:
        job.wait_for_lines("ready", 4)
        job.process.kill()
        assert job.survivors() == []


@pytest.mark.parametrize("repetition", range(REPETITIONS))
def test_sigkill_of_one_worker_ends_the_job_and_is_reported(repetition: int) -> None:
    with RunningJob("-np", "3", *python(WAITING_FAMILY)) as job:
        pids = worker_pids(job.wait_for_lines("ready", 3))
        os.kill(pids[1], signal.SIGKILL)
        code, out, err = job.finish()
        assert code == 137
        assert "Process 1 exit with status code 137." in out
        assert "Terminating remaining workers after failure of Process 1." in out
        assert "Process name: 1\nExit code: 137\n" in err
        assert "Rank 1 on host localhost was killed by signal 9 (SIGKILL)" in err
        assert f"[1]<stdout>:ready 1 {pids[1]}" in err
        assert job.pids() == []


@pytest.mark.parametrize("which", ["guardian", "inner", "both"])
def test_sigkill_of_an_agent_leaves_no_process(which: str) -> None:
    with RunningJob(*TWO_HOSTS, *python(WAITING_FAMILY)) as job:
        job.wait_for_lines("ready", 4)
        guardian, inner = sorted(job.pids("horovod.runner.agent"))[:2]
        if os.getsid(guardian) != os.getsid(inner):  # the agents' processes alternate
            inner = next(p for p in job.pids("horovod.runner.agent") if p != guardian
                         and os.getsid(p) == os.getsid(guardian))  # fmt: skip
        for pid in {"guardian": [guardian], "inner": [inner], "both": [guardian, inner]}[which]:
            with contextlib.suppress(ProcessLookupError):  # the inner one ends with its guardian
                os.kill(pid, signal.SIGKILL)
        code, _, err = job.finish()
        assert code != 0
        assert job.survivors() == []
        assert "Horovod detected that one or more processes exited" in err


def test_workers_that_ignore_signals_are_killed_after_the_grace_time() -> None:
    with RunningJob("-np", "2", *python(STUBBORN_FAMILY)) as job:
        job.wait_for_lines("ready", 2)
        job.process.send_signal(signal.SIGINT)
        assert job.finish()[0] == 130
        assert job.pids() == []


def test_second_ctrl_c_kills_at_once() -> None:
    with RunningJob("-np", "2", *python(STUBBORN_FAMILY.replace(
        "print(", "signal.signal(signal.SIGINT, lambda *_: print('interrupted'));print("
    ))) as job:  # fmt: skip
        job.wait_for_lines("ready", 2)
        job.process.send_signal(signal.SIGINT)
        job.wait_for_lines("interrupted", 1)
        job.process.send_signal(signal.SIGINT)
        assert job.finish()[0] == 130
        assert job.pids() == []


# Writes until nothing is taken any more, says so in a file, and goes on.
FLOOD = (
    FAMILY
    + """
import select
os.set_blocking(1, False)
while select.select([], [1], [], 2.0)[1]:
    os.write(1, b"more\\n" * 100)
os.set_blocking(1, True)
open(sys.argv[1] + os.environ["HOROVOD_RANK"], "w").close()
while True:
    os.write(1, b"more\\n")
"""
)


def test_ctrl_c_works_while_nobody_takes_the_output(tmp_path: Path) -> None:
    with RunningJob("-np", "2", *python(FLOOD), str(tmp_path / "stuck")) as job:
        pids = worker_pids(job.wait_for_lines("ready", 2))
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        job.process.send_signal(signal.SIGINT)
        wait_until(lambda: not set(pids.values()) & set(job.pids()))
        assert job.process.poll() is None  # it holds output that nobody has taken
        job.process.send_signal(signal.SIGINT)
        assert job.process.wait(60) == 130
        assert job.pids() == []


def test_what_a_successful_worker_leaves_behind_is_ended() -> None:
    with RunningJob("-np", "2", *python(FAMILY)) as job:
        assert job.finish()[0] == 0
        assert job.pids() == []


def test_a_reader_that_leaves_ends_the_job() -> None:
    with RunningJob("-np", "2", *python(FAMILY + "while True: print('more', flush=True)")) as job:
        job.wait_for_lines("more", 1)
        assert job.process.stdout is not None
        job.process.stdout.close()
        assert job.process.wait(60) == 128 + signal.SIGPIPE
        assert job.pids() == []


def test_the_exit_code_of_the_first_failure_is_reported() -> None:
    code = "import os, sys, time; r = int(os.environ['HOROVOD_RANK'])\n"
    code += "sys.exit(7) if r == 1 else time.sleep(1000)"
    done = launch("-np", "2", *python(code))
    assert done.returncode == 7
    assert b"Rank 1 on host localhost exited with status 7." in done.stderr


def test_the_cause_is_reported_even_if_its_process_ends_last() -> None:
    code = """if True:
        import os, sys, time
        if os.environ["HOROVOD_RANK"] == "0":
            sys.exit("horovod.common.exceptions.HorovodInternalError: rank 1 has shut down")
        print("ValueError: the real reason", file=sys.stderr)
        time.sleep(0.5)
        sys.exit(5)
    """
    done = launch("-np", "2", *python(code))
    assert done.returncode == 5
    assert done.stderr.rstrip().endswith(b"[1]<stderr>:ValueError: the real reason")
