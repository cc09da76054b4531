"""Autotune in real jobs: what it writes and says, what it leaves alone, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from launcher_process import launch, python

from horovod.common.autotune import read_log
from horovod.common.autotune.log_file import HEADER
from horovod.common.autotune.space import MEBIBYTE, Setting

# Trains until rank 0 has enough: of steps, of lines in the log, or of tuning. Every sum is checked.
WORKER = """if True:
    import os, pathlib, sys, threading
    import numpy as np
    import horovod.numpy as hvd

    def lines(path):
        return path.read_text().count("\\n") if path.exists() else 0

    def tuned():
        return all(thread.name != "horovod-autotune" for thread in threading.enumerate())

    def train(enough):
        step = 0
        while True:
            found = np.array([hvd.rank() == 0 and enough(step)], np.int32)
            tensors = [np.full(1000 + i, step % 7 + hvd.rank(), np.float32) for i in range(8)]
            handles = [hvd.allreduce_async(t, name=f"g{i}", op=hvd.Sum) for i, t in enumerate(tensors)]
            for i, handle in enumerate(handles):
                expected = hvd.size() * (step % 7) + sum(range(hvd.size()))
                assert (hvd.synchronize(handle) == expected).all(), (step, i)
            if hvd.allreduce(found, name="enough", op=hvd.Max)[0]:
                return
            step += 1
"""
# --cache-capacity leaves one search, of three samples: starting values, two test points. Its best and the
# starting values are measured three times each, if they differ; otherwise the starting values once.
FEW_SAMPLES = (
    "--autotune",
    "--autotune-warmup-samples=1",
    "--autotune-steps-per-sample=2",
    "--autotune-bayes-opt-max-samples=3",
    "--cache-capacity=512",
)
FINISHED = "Autotune has finished after"
WAITING_WORKER = (
    WORKER
    + """
    hvd.init()
    train(lambda step: tuned())
    hvd.shutdown()
"""
)
# 3 samples, 1 or 6 of the final, the winner.
ROW_COUNTS = (5, 10)


def worker_of_steps(count: int) -> list[str]:
    return python(WORKER + f"    hvd.init()\n    train(lambda step: step >= {count})\n")


def test_a_job_is_tuned_and_says_what_won(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    done = launch(*FEW_SAMPLES, f"--autotune-log-file={log}", "-np", "2", *python(WAITING_WORKER))
    assert done.returncode == 0, done.stderr
    assert log.read_text().startswith(HEADER + "\n0,0,0,1,1,134217728,")
    samples = read_log(log)
    assert len(samples) in ROW_COUNTS
    assert [sample.setting for sample in samples[:3]] == [
        Setting(128 * MEBIBYTE, 1.0, True),
        Setting(4 * MEBIBYTE, 5.0, True),
        Setting(32 * MEBIBYTE, 50.0, True),
    ]
    assert samples[-1].setting in [sample.setting for sample in samples[3:-1]]
    assert all(sample.score > 0 for sample in samples)
    text = done.stderr.decode()
    assert text.count(FINISHED) == 1  # at the default log level, by rank 0 alone
    assert f"{FINISHED} {len(samples) - 1} samples. " in text
    assert samples[-1].setting.describe() in text


def test_after_shutdown_and_init_tuning_goes_on(tmp_path: Path) -> None:
    log, copy = tmp_path / "log.csv", tmp_path / "copy.csv"
    worker = """
    log = pathlib.Path(sys.argv[1])
    hvd.init()
    train(lambda step: lines(log) >= 3)
    hvd.shutdown()
    if os.environ["HOROVOD_RANK"] == "0":
        pathlib.Path(sys.argv[2]).write_text(log.read_text())
    hvd.init()
    train(lambda step: tuned())
    hvd.shutdown()
"""
    done = launch(
        *FEW_SAMPLES,
        f"--autotune-log-file={log}",
        *("-np", "2", *python(WORKER + worker), str(log), str(copy)),
    )
    assert done.returncode == 0, done.stderr
    assert len(read_log(copy)) >= 2
    assert log.read_text().startswith(copy.read_text())
    assert len(read_log(log)) in ROW_COUNTS
    text = done.stderr.decode()
    assert text.count("Autotune was stopped before it had finished. Best of ") == 1
    assert text.count(FINISHED) == 1


def test_values_set_by_flag_and_by_file_stay(tmp_path: Path) -> None:
    log, config = tmp_path / "log.csv", tmp_path / "config.yaml"
    config.write_text(
        "params:\n  cycle_time_ms: 3.5\nautotune:\n  enabled: true\n  warmup_samples: 0\n"
        f"  steps_per_sample: 1\n  bayes_opt_max_samples: 3\n  log_file: {log}\n"
    )
    command = python(WAITING_WORKER)
    done = launch(f"--config-file={config}", "--cache-capacity=0", "-np", "2", *command)
    assert done.returncode == 0, done.stderr
    settings = {sample.setting for sample in read_log(log)}
    assert {(setting.cycle_time_ms, setting.cache_enabled) for setting in settings} == {
        (3.5, False)
    }
    assert {setting.threshold_bytes // MEBIBYTE for setting in settings} == {128, 4, 32}


def test_when_all_values_are_set_nothing_is_tuned(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    done = launch(
        *FEW_SAMPLES,
        *("--fusion-threshold-mb=16", "--cycle-time-ms=2", f"--autotune-log-file={log}"),
        *("-np", "2", *worker_of_steps(50)),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"Autotune has nothing to tune: ") == 1
    assert not log.exists()


def test_a_log_that_cannot_be_written_is_one_error_and_training_goes_on(tmp_path: Path) -> None:
    done = launch(
        *FEW_SAMPLES, f"--autotune-log-file={tmp_path}", "-np", "2", *worker_of_steps(300)
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"can't be written: Is a directory") == 1


def test_a_script_that_ends_earlier_says_so_and_ends(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    done = launch("--autotune", f"--autotune-log-file={log}", "-np", "2", *worker_of_steps(20))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"Autotune was stopped during its first samples") == 1
    assert log.read_text() == HEADER + "\n"


def test_the_death_of_a_rank_ends_a_job_that_is_being_tuned(tmp_path: Path) -> None:
    worker = """
    import signal
    hvd.init()
    if hvd.rank() == 1:
        count = [0]
        plain = hvd.allreduce_async
        def counted(*arguments, **options):
            count[0] += 1
            if count[0] == 100:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*arguments, **options)
        hvd.allreduce_async = counted
    train(lambda step: False)
"""
    done = launch("--autotune", "-np", "2", *python(WORKER + worker))
    assert done.returncode == 137
    assert b"Rank 1 on host localhost was killed by signal 9 (SIGKILL)" in done.stderr


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--autotune-gaussian-process-noise", "1.5"),
        ("--autotune-steps-per-sample", "0"),
        ("--autotune-bayes-opt-max-samples", "-1"),
    ],
)
def test_an_illegal_value_is_refused_before_anything_starts(flag: str, value: str) -> None:
    done = launch("--autotune", f"{flag}={value}", "-np", "2", *python("print('started')"))
    assert done.returncode != 0
    assert flag.encode() in done.stderr
    assert b"started" not in done.stdout
