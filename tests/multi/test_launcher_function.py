"""horovod.run: a Python function on every rank."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import launcher_process  # noqa: F401 - makes PYTHONPATH absolute
import pytest

import horovod


def rank() -> int:
    return int(os.environ["HOROVOD_RANK"])


def test_results_come_back_by_rank_with_arguments_and_closures() -> None:
    offset = 10
    results = horovod.run(lambda a, b: (rank(), a + offset, b), (1,), {"b": 2}, num_proc=3)
    assert results == [(0, 11, 2), (1, 11, 2), (2, 11, 2)]


def test_a_large_result_travels_whole() -> None:
    assert horovod.run(lambda: bytes(20_000_000), num_proc=1) == [bytes(20_000_000)]


def test_an_exception_is_raised_with_rank_and_traceback() -> None:
    def fail() -> None:
        if rank() == 1:
            raise ValueError("what went wrong")

    with pytest.raises(RuntimeError) as raised:
        horovod.run(fail, num_proc=2)
    text = str(raised.value)
    assert "Process name: 1\nExit code: 1\n" in text
    assert "Exception on rank 1 of 2:\nTraceback" in text
    assert "in fail" in text and "ValueError: what went wrong" in text


def test_a_result_that_cannot_be_pickled_is_an_error_of_its_rank() -> None:
    with pytest.raises(RuntimeError, match=r"Exception on rank 0 of 1:[\s\S]*cannot pickle"):
        horovod.run(threading.Lock, num_proc=1)


def test_a_worker_that_vanishes_is_reported() -> None:
    with pytest.raises(RuntimeError, match="killed by signal 9"):
        horovod.run(lambda: os.kill(os.getpid(), 9), num_proc=1)
    with pytest.raises(RuntimeError, match="before its function returned"):
        horovod.run(lambda: os._exit(0), num_proc=1)


def test_wrong_arguments_are_refused_before_anything_starts() -> None:
    for arguments, error in (
        ({"num_proc": 0}, ValueError),
        ({"hosts": "localhost:1", "hostfile": "h"}, ValueError),
        ({"use_gloo": True, "use_mpi": True}, ValueError),
        ({"hosts": "localhost:1", "num_proc": 2}, ValueError),
        ({"min_num_proc": 1}, NotImplementedError),
        ({"mpi_args": "-v"}, ValueError),
    ):
        with pytest.raises(error):
            horovod.run(rank, **arguments)


def test_functions_of_a_script_run_without_running_the_script_again(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def twice(x): return 2 * x\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import os, horovod, beside\n"
        "print('once')\n"
        "def work(x): return beside.twice(x) + int(os.environ['HOROVOD_RANK'])\n"
        "print(horovod.run(work, (3,), num_proc=2))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path.parent,
    )
    assert done.stdout == "once\n[6, 7]\n", done.stderr
