"""Timelines of real jobs: valid at every moment, nested, with every name, begun and ended from any rank."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from launcher_process import RunningJob, launch, wait_until
from timeline_job import NAMES

from horovod.runner.timeline.nesting import check_nesting

JOB = str(Path(__file__).with_name("timeline_job.py"))
KILLS = 100


def load(path: Path, *, killed: bool = False) -> list[dict[str, Any]]:
    """The events of a file that must be JSON and strictly nested; rows may be open if it was `killed`."""
    events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    assert check_nesting(events, may_end_open=killed) == []
    return events


def row_titles(events: list[dict[str, Any]]) -> dict[int, str]:
    return {
        event["pid"]: event["args"]["name"]
        for event in events
        if event.get("name") == "process_name"
    }


def names_in(events: list[dict[str, Any]], title: str) -> list[str]:
    """What a row shows: names of phases as they begin, of marks, and E."""
    (pid,) = (pid for pid, name in row_titles(events).items() if name == title)
    return [
        event["ph"] if event["ph"] == "E" else event["name"]
        for event in events
        if event.get("pid") == pid and event["ph"] != "M"
    ]


def run(*arguments: str, env: dict[str, str] | None = None) -> str:
    done = launch(*arguments, env={**os.environ, **(env or {})})
    text = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, text
    return text


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_writes_a_timeline_that_is_nested_and_complete(
    tmp_path: Path, ranks: int
) -> None:
    file = tmp_path / "t.json"
    flags = ["--timeline-filename", str(file), "--timeline-all-ranks", "--timeline-mark-cycles"]
    run("-np", str(ranks), *flags, sys.executable, JOB, "steps")
    files = [file, *(tmp_path / f"t.rank{rank}.json" for rank in range(1, ranks))]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    for rank, path in enumerate(files):
        events = load(path)
        head = events[0]["args"]
        assert (head["rank"], head["size"], head["hosts"]) == (rank, ranks, ["localhost"] * ranks)
        titles = set(row_titles(events).values())
        for index, name in enumerate(NAMES):
            assert f"allreduce.{name}.{index}" in titles
        heard = [str(number) for number in range(ranks)] if rank == 0 else [str(rank)]
        first = names_in(events, f"allreduce.{NAMES[0]}.0")
        assert first[0] == "NEGOTIATE_ALLREDUCE"
        end = first.index("E")
        assert sorted(first[1:end]) == heard
        assert first[end + 1 : end + 5] == ["ALLREDUCE", "QUEUE", "E", "GLOO_ALLREDUCE"]
        assert first.count("GLOO_ALLREDUCE") == 5
        for title, phase, activity in (
            ("allgather.rows", "ALLGATHER", "GLOO_ALLGATHER"),
            ("broadcast.root's", "BROADCAST", "GLOO_BCAST"),
            ("alltoall.all to all", "ALLTOALL", "GLOO_ALLTOALL"),
            ("reducescatter.scatter", "REDUCESCATTER", "GLOO_REDUCESCATTER"),
        ):
            shown = names_in(events, title)
            assert [f"NEGOTIATE_{phase}", phase, activity] == [
                name for name in shown if name in (f"NEGOTIATE_{phase}", phase, activity)
            ]
        assert any(event.get("name") == "BARRIER" for event in events)
        assert any(event.get("name") == "JOIN" for event in events)
        assert ("ERROR" in names_in(events, "allreduce.mismatch")) == (ranks > 1)
        steps = [event["args"]["step"] for event in events if event.get("name") == "STEP"]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) >= 5
        assert any(event.get("name") == "CYCLE_START" for event in events) == (rank == 0)
        awaited = {
            event.get("args", {}).get("tensor") for event in events if event.get("name") == "WAIT"
        }
        assert awaited - {None} <= titles
        assert ranks == 1 or awaited - {None}


def test_members_of_a_response_say_so_alike_on_all_ranks(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    run(
        *("-np", "2", "--timeline-filename", str(file), "--timeline-all-ranks"),
        *(sys.executable, JOB, "steps"),
    )
    counts = []
    for path in (file, tmp_path / "t.rank1.json"):
        ends = [event["args"] for event in load(path) if event["ph"] == "E" and "args" in event]
        ends = [end for end in ends if "response" in end]
        members = Counter(end["response"] for end in ends)
        assert all(members[end["response"]] == end["fused"] for end in ends)
        counts.append(members)
        first = next(end for end in ends if end["shape"] == "[10]")
        assert (first["dtype"], first["bytes"]) == ("float32", 40)
    assert counts[0] == counts[1]


def test_a_timeline_is_valid_whenever_the_job_is_killed(tmp_path: Path) -> None:
    """100 kills at random moments; what is lost is at most the last tenth of a second."""
    command = [sys.executable, JOB, "killed", str(tmp_path), str(KILLS), "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    sizes = [len(load(tmp_path / f"{number}.json", killed=True)) for number in range(KILLS)]
    assert sum(size > 100 for size in sizes) > KILLS / 4


def test_a_job_of_two_ranks_leaves_valid_files_when_both_are_killed(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    flags = ["--timeline-filename", str(file), "--timeline-all-ranks"]
    with RunningJob("-np", "2", *flags, sys.executable, JOB, "for_ever") as job:
        files = (file, tmp_path / "t.rank1.json")
        wait_until(lambda: all(f.exists() and f.stat().st_size > 100_000 for f in files))
        job.process.send_signal(signal.SIGKILL)
        job.process.wait()
        assert job.survivors() == []
        for path in files:
            assert len(load(path, killed=True)) > 100


def test_clocks_of_several_hosts_are_compared(tmp_path: Path) -> None:
    """The two hosts are this machine, so the true offset is 0 and must lie within the error."""
    file = tmp_path / "t.json"
    flags = ["--timeline-filename", str(file), "--timeline-all-ranks"]
    run("-np", "4", "-H", "localhost:2,127.0.0.1:2", *flags, sys.executable, JOB, "steps")
    heads = [load(path)[0]["args"] for path in (file, *sorted(tmp_path.glob("t.rank*.json")))]
    assert [head["host"] for head in heads] == ["localhost"] * 2 + ["127.0.0.1"] * 2
    for head in heads[:2]:
        assert (head["clock_offset_micros"], head["clock_error_micros"]) == (0, 0)
    for head in heads[2:]:
        assert 0 < head["clock_error_micros"] < 1e6
        assert abs(head["clock_offset_micros"]) <= head["clock_error_micros"]


def test_any_rank_begins_and_ends_a_timeline(tmp_path: Path) -> None:
    text = run(
        *("-np", "2", sys.executable, JOB, "dynamic", str(tmp_path)),
        env={"HOROVOD_TIMELINE": "DYNAMIC"},
    )
    assert text.count(f"refused: The timeline can't begin on rank 0: '{tmp_path}'") == 2
    first = load(tmp_path / "first.json")
    assert any(event.get("name") == "CYCLE_START" for event in first)
    shown = names_in(first, f"allreduce.{NAMES[0]}.0")
    assert shown.count("NEGOTIATE_ALLREDUCE") == 1
    second = load(tmp_path / "second.json")
    assert not any(event.get("name") == "CYCLE_START" for event in second)
    assert names_in(second, f"allreduce.{NAMES[0]}.0").count("GLOO_ALLREDUCE") == 2
    for rank in (0, 1):
        load(tmp_path / f"rank{rank}.json")
    assert not list(tmp_path.glob("*.rank1.json"))


def test_a_file_that_reaches_its_limit_is_renamed_once(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    with RunningJob(
        *("-np", "1", "--timeline-filename", str(file), "--timeline-max-mb", "1"),
        *(sys.executable, JOB, "for_ever"),
    ):
        former = tmp_path / "t.json.1"
        wait_until(former.exists)
        wait_until(lambda: file.exists() and file.stat().st_size > 100_000)
    events = load(former)
    assert 0.9 < former.stat().st_size / (1 << 20) < 1.1
    assert (
        load(file, killed=True)[0]["args"]["start_time_since_epoch_in_micros"]
        > events[0]["args"]["start_time_since_epoch_in_micros"]
    )


@pytest.mark.parametrize("path", ["{tmp}", "{tmp}/none/t.json", "/proc/t.json"])
def test_a_path_that_cannot_be_written_costs_one_error(tmp_path: Path, path: str) -> None:
    path = path.format(tmp=tmp_path)
    text = run("-np", "2", "--timeline-filename", path, sys.executable, JOB, "steps")
    assert text.count("No timeline is written, and the job goes on without it: ") == 1
    assert f"'{path}'" in text


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_ends_the_timeline_and_not_the_job(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False).returncode:
        pytest.skip("tmpfs can't be mounted here")
    try:
        file = disk / "t.json"
        text = run(
            *("-np", "1", "--timeline-filename", str(file), sys.executable, JOB, "slow_disk", "")
        )
        assert text.count("The timeline ends here, and the job goes on without it") == 1
        assert "No space left on device" in text
        assert "training goes on" in text
        assert len(load(file, killed=True)) > 100
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_timeline_that_was_not_armed_is_refused() -> None:
    code = (
        "import horovod.numpy as hvd\n"
        "for begin in (hvd.start_timeline, lambda _: hvd.stop_timeline()):\n"
        "    try: begin('t'); raise SystemExit('not refused')\n"
        "    except ValueError as error: print(error)\n"
        "hvd.init()\n"
        "try: hvd.start_timeline('t'); raise SystemExit('not refused')\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Horovod has not been initialized; use hvd.init().") == 2
    assert "Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage." in done.stdout
