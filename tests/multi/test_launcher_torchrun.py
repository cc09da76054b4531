"""The same script started by torchrun, by horovodrun and alone."""

from __future__ import annotations

import math
import subprocess
import sys

from launcher_process import DEADLINE_SECONDS, launch
from launcher_training import Ending, command, endings, environment

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]


def under_torchrun(ranks: int) -> list[Ending]:
    """Runs the script under torchrun, which starts a Python file without naming the interpreter."""
    done = subprocess.run(
        [*TORCHRUN, str(ranks), *command()[1:]],
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr.decode()
    return endings(done.stdout, ranks)


def test_torchrun_and_horovodrun_end_with_the_same_loss_and_parameters() -> None:
    ours = launch("-np", "2", *command(), env=environment())
    assert ours.returncode == 0, ours.stderr.decode()
    expected = endings(ours.stdout, 2)
    assert len(set(expected)) == 1
    assert under_torchrun(2) == expected


def test_plain_python_torchrun_and_horovodrun_agree_on_a_job_of_one_process() -> None:
    alone = subprocess.run(
        command(), capture_output=True, timeout=DEADLINE_SECONDS, env=environment()
    )
    assert alone.returncode == 0, alone.stderr.decode()
    expected = endings(alone.stdout, 1)
    assert math.isfinite(float(expected[0].loss))
    ours = launch("-np", "1", *command(), env=environment())
    assert endings(ours.stdout, 1) == expected, ours.stderr.decode()
    assert under_torchrun(1) == expected
