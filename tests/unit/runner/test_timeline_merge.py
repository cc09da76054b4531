"""One trace of all ranks: whole, nested, in one time, with rows that can be told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from timeline_samples import Sample, simulate, split, timeline_text, write_job

from horovod.runner.timeline import TimelineError, check_nesting
from horovod.runner.timeline.job import open_job
from horovod.runner.timeline.merge import merge


def merged(paths: list[Path], output: Path) -> list[dict[str, Any]]:
    merge(open_job(paths), output)
    return json.loads(output.read_text())


def row_names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def test_all_events_of_all_ranks_are_there_once_and_nested(tmp_path: Path) -> None:
    sample = Sample(size=3, steps=5, late={1: 4_000}, data_wait=50, cycles=True)
    paths = write_job(tmp_path / "t.json", sample)
    events = merged(paths, tmp_path / "m.json")
    assert check_nesting(events) == []
    given = [e for path in paths for e in json.loads(path.read_text()) if e["ph"] != "M"]
    kept = [e for e in events if e["ph"] != "M"]
    assert [(e["ph"], e["name"], e.get("args")) for e in kept] == [
        (e["ph"], e["name"], e.get("args")) for e in given
    ]


def test_rows_are_named_by_rank_and_have_pids_of_their_own(tmp_path: Path) -> None:
    paths = write_job(tmp_path / "t.json", Sample(size=2, steps=3))
    events = merged(paths, tmp_path / "m.json")
    names = row_names(events)
    assert len(set(names.values())) == len(names)
    assert {"rank 0: fc1.weight", "rank 1: fc1.weight", "rank 1: synchronize"} <= set(
        names.values()
    )
    assert {e["pid"] for e in events if e["ph"] != "M"} <= set(names)
    named = [e["pid"] for e in events if e["name"] == "process_name"]
    assert len(named) == len(set(named))


def test_times_are_those_of_rank_0s_clock(tmp_path: Path) -> None:
    sample = Sample(
        size=3,
        steps=4,
        late={1: 3_000},
        clock_offsets={1: -5e6, 2: 1234.5},
        started={0: 700, 1: 300, 2: 900},
    )
    events = merged(write_job(tmp_path / "t.json", sample), tmp_path / "m.json")
    names = row_names(events)
    ends: dict[Any, set[float]] = {}
    for e in events:
        if e["ph"] == "E" and e["name"] == "ALLREDUCE":
            key = (e["args"]["response"], names[e["pid"]].partition(": ")[2])
            ends.setdefault(key, set()).add(e["ts"])
    assert len(ends) == 16
    for of_ranks in ends.values():  # an operation ends everywhere at once, in the sample
        assert max(of_ranks) - min(of_ranks) < 1.01  # whole microseconds in the headers
    assert min(e["ts"] for e in events if "ts" in e) >= 0


def test_rows_that_are_open_at_the_end_are_closed_there(tmp_path: Path) -> None:
    paths = write_job(tmp_path / "t.json", Sample(size=3, steps=3, open_end=True, missing=2))
    assert any(check_nesting(json.loads(path.read_text())) for path in paths)
    assert check_nesting(merged(paths, tmp_path / "m.json")) == []


@pytest.mark.parametrize("moment", [9_000, 41_050, 63_333])
def test_the_older_part_of_a_file_goes_before_it_on_the_same_rows(
    moment: int, tmp_path: Path
) -> None:
    recorder = simulate(Sample(size=1, steps=5))[0]
    older, newer = split(recorder, moment)
    (tmp_path / "t.json.1").write_text(older)
    (tmp_path / "t.json").write_text(newer)
    events = merged([tmp_path / "t.json"], tmp_path / "m.json")
    assert check_nesting(events) == []
    names = list(row_names(events).values())
    assert sorted(names) == sorted(set(names))
    steps = [e["args"]["step"] for e in events if e["name"] == "STEP"]
    assert steps == [0, 1, 2, 3, 4]


def test_names_with_any_characters_stay_as_they_are(tmp_path: Path) -> None:
    name = 'quote " back \\ line\n null \0 ü 模型 \ud800'
    paths = write_job(tmp_path / "t.json", Sample(size=1, steps=2, layers=[(name, 4, 50.0)]))
    events = merged(paths, tmp_path / "m.json")
    assert f"rank 0: {name}" in row_names(events).values()


def test_recordings_of_different_times_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    first = write_job(tmp_path / "a.json", Sample(size=2, steps=3), [0])
    later = Sample(size=2, steps=3, epoch=Sample().epoch + 9_000_000)
    second = write_job(tmp_path / "b.json", later, [1])
    output = tmp_path / "m.json"
    output.write_text("before")
    with pytest.raises(TimelineError, match="different jobs: one was recorded"):
        merge(open_job([*first, *second]), output)
    assert output.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.rank1.json", "m.json"]


def test_a_corrupt_file_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    lines = simulate(Sample(size=1, steps=3))[0].lines()
    lines[30] = lines[30][:-3]
    (tmp_path / "t.json").write_text(timeline_text(lines))
    with pytest.raises(TimelineError, match="line 32"):
        merge(open_job([tmp_path / "t.json"]), tmp_path / "m.json")
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_a_tensor_called_like_the_row_of_the_waits_keeps_a_row_of_its_own(tmp_path: Path) -> None:
    layers = [("synchronize", 4_000_000, 50.0), ("job", 4, 50.0)]
    paths = write_job(tmp_path / "t.json", Sample(size=1, steps=3, layers=layers))
    events = merged(paths, tmp_path / "m.json")
    names = list(row_names(events).values())
    assert names.count("rank 0: synchronize") == names.count("rank 0: job") == 2
    waits = {e["pid"] for e in events if e["name"] == "WAIT"}
    assert waits.isdisjoint(e["pid"] for e in events if e["name"] == "ALLREDUCE")
