"""horovodrun scaling and predict with real jobs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from launcher_process import RunningJob, launch, python

HEAD = "import os, sys, time\nrank, size = (int(os.environ['HOROVOD_' + n]) for n in ('RANK', 'SIZE'))\n"
# Nine tenths of what was there are kept with each doubling, so the figures are known.
SPEED = (
    HEAD + "rank or print(f'Total img/sec on {size} CPU(s): {100 * size * 0.9 ** (size // 2):.3f}')"
)
FAILS_WITH_TWO = HEAD + "print('40 samples/s') if size != 2 else sys.exit(7)"
# What the engine writes into a timeline, as far as the report needs it: 20 steps per second.
MARKS = (
    HEAD
    + """
import json
if rank == 0:
    with open(os.environ['HOROVOD_TIMELINE'], 'w') as file:
        head = {'name': 'process_name', 'ph': 'M', 'pid': 0, 'args': {'rank': 0}}
        steps = [{'name': 'STEP', 'ph': 'i', 'ts': 5e4 * i, 'pid': 0} for i in range(20)]
        file.write('[\\n' + ',\\n'.join(map(json.dumps, [head, *steps])) + '\\n]\\n')
"""
)
ENGINE = """
import numpy, time
import horovod.numpy as hvd
hvd.init()
for step in range(30):
    time.sleep(0.01)
    handles = [hvd.allreduce_async(numpy.ones(1000, numpy.float32), name=f"g{i}") for i in range(3)]
    for handle in handles:
        hvd.synchronize(handle)
hvd.shutdown()
"""


def scaling(*words: str, **options: object):
    return launch("scaling", *words, **options)


def sizes_of(path: Path) -> list[dict[str, object]]:
    return json.loads(path.read_text())["sizes"]


def test_every_size_is_run_and_its_figures_are_those_of_the_script(tmp_path: Path) -> None:
    report = tmp_path / "scaling.json"
    done = scaling("--np", "4,1,2", "--json", str(report), *python(SPEED))
    assert done.returncode == 0, done.stderr
    assert [size["ranks"] for size in sizes_of(report)] == [1, 2, 4]
    assert [size["throughput"] for size in sizes_of(report)] == [100.0, 180.0, 324.0]
    assert [size["efficiency"] for size in sizes_of(report)] == pytest.approx([1, 0.9, 0.81])
    # The output was passed on, the table stands after it, and what we say goes to standard error.
    out = done.stdout.decode()
    assert out.index("[0]<stdout>:Total img/sec on 4 CPU(s): 324.000") < out.index("RANKS")
    assert "81.0 %" in out and b"(run 3 of 3)" in done.stderr


def test_quiet_passes_nothing_on_and_keeps_the_report() -> None:
    done = scaling("--np", "1,2", "--quiet", *python(SPEED))
    assert done.returncode == 0
    assert b"<stdout>" not in done.stdout and b"90.0 %" in done.stdout


def test_a_size_that_fails_is_reported_and_the_rest_runs(tmp_path: Path) -> None:
    report = tmp_path / "scaling.json"
    done = scaling("--np", "1,2,3", "--quiet", "--json", str(report), *python(FAILS_WITH_TWO))
    assert done.returncode == 1
    assert [size["exit_code"] for size in sizes_of(report)] == [0, 7, 0]
    # All three ranks print their own figure.
    assert [size["throughput"] for size in sizes_of(report)] == [40, None, 120]
    assert b"2 ranks failed with exit code 7" in done.stderr
    assert b"exited with status 7" in done.stderr  # the launcher's last lines, though it is quiet


def test_stop_on_failure_leaves_the_other_sizes_out(tmp_path: Path) -> None:
    report = tmp_path / "scaling.json"
    done = scaling(
        *("--np", "1,2,3", "--stop-on-failure", "--json", str(report)), *python(FAILS_WITH_TWO)
    )
    assert done.returncode == 1
    assert [size["ranks"] for size in sizes_of(report)] == [1, 2]
    assert b"not run: 3 ranks" in done.stderr


def test_flags_of_horovodrun_reach_it(tmp_path: Path) -> None:
    flags = ("--output-filename", str(tmp_path), "-H", "localhost:2")
    done = scaling("--np", "1,2", *flags, *python(SPEED))
    assert done.returncode == 0, done.stderr
    assert b"Total img/sec on 2" in (tmp_path / "rank.0" / "stdout").read_bytes()


def test_step_marks_count_where_the_script_prints_no_throughput(tmp_path: Path) -> None:
    report = tmp_path / "scaling.json"
    done = scaling("--np", "1,2", "--json", str(report), *python(MARKS))
    assert done.returncode == 0, done.stderr
    assert [size["throughput"] for size in sizes_of(report)] == pytest.approx([20, 40])
    assert sizes_of(report)[1]["unit"] == "steps/s"


def test_a_script_without_any_figure_is_told_what_was_expected() -> None:
    done = scaling("--np", "1", *python("print('done')"))
    assert done.returncode == 1
    assert b"no throughput was found" in done.stderr and b"--pattern" in done.stderr
    assert b"no throughput found" in done.stdout


def test_a_pattern_finds_figures_in_words_of_the_script(tmp_path: Path) -> None:
    report = tmp_path / "scaling.json"
    code = HEAD + "print(f'v={7 + rank};')"
    words = ("--np", "1,2", "--pattern", "v=([0-9]+);", "--json", str(report))
    assert scaling(*words, *python(code)).returncode == 0
    assert [size["throughput"] for size in sizes_of(report)] == [7, 15]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_report_shows_what_is_complete_and_leaves_no_process(
    signum: signal.Signals,
) -> None:
    code = (
        HEAD
        + "print('5 images/s' if size == 1 else 'up', flush=True); size > 1 and time.sleep(300)"
    )
    with RunningJob("scaling", "--np", "1,2,3", *python(code)) as job:
        job.wait_for_lines("up", 2)
        job.process.send_signal(signum)
        status, out, err = job.finish()
        assert status == 128 + signum
        assert "IMAGES/S" in out and "interrupted; 1 of 3 runs are complete" in err
        assert not job.survivors()


def test_no_process_survives_when_the_report_is_killed() -> None:
    code = "import time; print('up', flush=True); time.sleep(300)"
    with RunningJob("scaling", "--np", "2", *python(code)) as job:
        job.wait_for_lines("up", 2)
        job.process.kill()
        assert not job.survivors()


def test_a_reader_who_leaves_ends_the_job() -> None:
    code = "while True: print('x' * 1000, flush=True)"
    with RunningJob("scaling", "--np", "2", *python(code)) as job:
        job.wait_for_lines("x", 3)
        assert job.process.stdout is not None
        job.process.stdout.close()
        assert job.process.wait(60) == 128 + signal.SIGPIPE
        assert not job.survivors()


def test_a_plot_without_matplotlib_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'matplotlib' else find(name, *a)\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    started = tmp_path / "started"
    done = scaling(
        *("--np", "1", "--plot", str(tmp_path / "p.png"), "touch", str(started)),
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 1
    assert b"pip install 'horovod[plots]'" in done.stderr
    assert not started.exists()


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "p.png"
    done = scaling("--np", "1,2", "--quiet", "--plot", str(picture), *python(SPEED))
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_steps_of_a_real_job_are_counted_and_its_timeline_predicts(tmp_path: Path) -> None:
    """The whole way: the engine writes the marks, and `predict` reads the engine's timeline."""
    timeline, report = tmp_path / "timeline.json", tmp_path / "scaling.json"
    done = scaling("--np", "1,2", "--measure", "steps", "--json", str(report), *python(ENGINE))
    assert done.returncode == 0, done.stderr
    one, two = sizes_of(report)
    assert 0 < one["throughput"] <= 100 and 0 < two["throughput"] <= 200  # a step sleeps 10 ms
    environment = {**os.environ, "HOROVOD_TIMELINE": str(timeline)}
    assert launch("-np", "2", *python(ENGINE), env=environment).returncode == 0
    words = ("--hosts", "4", "--bandwidth", "1Gbit/s", "--json", "-")
    predicted = launch("predict", str(timeline), *words)
    assert predicted.returncode == 0, predicted.stderr
    workload = json.loads(predicted.stdout)["workload"]
    assert (workload["tensors"], workload["bytes"]) == (3, 12_000)
    assert workload["compute_seconds"] >= 0.01
