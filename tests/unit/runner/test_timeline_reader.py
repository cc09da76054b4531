"""Files of timelines: what is read, and what is said about files that can't be."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from timeline_samples import Sample, path_of, simulate, split, timeline_text, write_job

from horovod.runner.timeline.errors import TimelineError
from horovod.runner.timeline.events import BATCH, EventReader
from horovod.runner.timeline.header import read_header
from horovod.runner.timeline.job import open_job, ranks_text
from horovod.runner.timeline.merge import merge
from horovod.runner.timeline.recording import Recording, read_recording


def events_of(path: Path) -> list[dict[str, Any]]:
    return list(EventReader(path))


def sample_lines(steps: int = 3, rank: int = 0, **more: Any) -> list[str]:
    return simulate(Sample(size=2, steps=steps, **more))[rank].lines()


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def error_of(path: Path) -> str:
    with pytest.raises(TimelineError) as caught:
        read_recording(open_job([path]).ranks[0], 0)
    return str(caught.value)


def record(path: Path) -> Recording:
    job = open_job([path])
    return read_recording(job.ranks[0], job.ranks[0].header.start)


# --- Layouts ---------------------------------------------------------------------------------------


def layouts(lines: list[str]) -> dict[str, str]:
    events = [json.loads(line) for line in lines]
    return {
        "one event per line": timeline_text(lines),
        "bracket before the first event": "[" + ",\n".join(lines) + "]",
        "commas at the beginning of lines": "[\n" + "\n,".join(lines) + "\n]",
        "windows line ends": timeline_text(lines).replace("\n", "\r\n"),
        "byte order mark": "\ufeff" + timeline_text(lines),
        "all in one line": json.dumps(events),
        "several events per line": "[" + ",".join(lines[:5]) + ",\n" + ",".join(lines[5:]) + "]",
        "one value per line": json.dumps(events, indent=1),
        "an object with traceEvents": json.dumps({"traceEvents": events}),
        "the same over several lines": json.dumps({"traceEvents": events}, indent=2),
        "empty lines": timeline_text(lines).replace("\n", "\n\n"),
    }


@pytest.mark.parametrize("layout", layouts(sample_lines(1)))
def test_every_layout_of_the_same_json_gives_the_same_events(layout: str, tmp_path: Path) -> None:
    lines = sample_lines()
    path = write(tmp_path / "t.json", layouts(lines)[layout])
    reader = EventReader(path)
    assert list(reader) == [json.loads(line) for line in lines]
    assert reader.notes == []


def test_names_with_any_characters_come_through(tmp_path: Path) -> None:
    name = 'quote " back \\ line\n null \0 tab\t ü 模型 \u2028 ] , }'
    path = write(
        tmp_path / "t.json", timeline_text(sample_lines(layers=[(name, 4, 100.0), ("b", 4, 100.0)]))
    )
    assert {op.name for op in record(path).operations} == {name, "b"}


def test_a_long_file_is_not_held_in_memory(tmp_path: Path) -> None:
    lines = sample_lines(steps=700)
    path = write(tmp_path / "t.json", timeline_text(lines))
    assert len(lines) > 10 * BATCH
    tracemalloc.start()
    try:
        count = sum(1 for _ in EventReader(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == len(lines)
    assert peak < path.stat().st_size


# --- Files that are broken -------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert error_of(tmp_path / "no.json") == f"{tmp_path / 'no.json'}: No such file or directory"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "is a directory" in error_of(tmp_path)


@pytest.mark.parametrize("text", ["", "\n \n", "[\n]\n", "[]"])
def test_an_empty_file_is_said_to_be_empty(text: str, tmp_path: Path) -> None:
    error = error_of(write(tmp_path / "t.json", text))
    assert "is empty" in error or "holds no event" in error


@pytest.mark.parametrize(
    "text", ["hello", "{}", "[1, 2]", '[{"a": 1}]', '"x"', "[[]]", '{"traceEvents": 3}', "[" * 5000]
)
def test_what_is_no_timeline_is_refused_with_file_and_reason(text: str, tmp_path: Path) -> None:
    error = error_of(write(tmp_path / "t.json", text))
    assert error.startswith(str(tmp_path / "t.json"))
    assert len(error) < 400


def test_a_corrupt_line_is_named_by_line_and_column(tmp_path: Path) -> None:
    lines = sample_lines(steps=200)
    for place in (4, BATCH + 7, len(lines) - 3):
        broken = [*lines]
        broken[place] = broken[place].replace('"ph": ', '"ph"; ', 1)
        error = error_of(write(tmp_path / "t.json", timeline_text(broken)))
        column = broken[place].index('"ph"; ') + 5
        assert f"line {place + 2}, column {column}: no JSON" in error


def test_bytes_that_are_no_text_are_named_by_line_and_column(tmp_path: Path) -> None:
    raw = [line.encode() for line in sample_lines()]
    raw[9] = raw[9][:20] + b"\xff" + raw[9][20:]
    error = error_of(write(tmp_path / "t.json", b"[\n" + b",\n".join(raw) + b"\n]\n"))
    assert "line 11, column 21: no UTF-8" in error


def test_a_missing_comma_is_named(tmp_path: Path) -> None:
    text = timeline_text(sample_lines()).replace("},\n", "}\n", 6).replace("}\n", "},\n", 5)
    assert "line 8, column 1: a comma is missing" in error_of(write(tmp_path / "t.json", text))


def test_two_files_in_one_are_noticed(tmp_path: Path) -> None:
    text = timeline_text(sample_lines(1))
    error = error_of(write(tmp_path / "t.json", text + text))
    assert f"line {text.count(chr(10)) + 1}" in error
    assert "two files in one" in error


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_truncated_file_is_read_up_to_there_with_a_note(cut: int, tmp_path: Path) -> None:
    lines = sample_lines()
    whole = timeline_text(lines).removesuffix("\n]\n")
    reader = EventReader(write(tmp_path / "t.json", whole[:-cut]))
    assert list(reader) == [json.loads(line) for line in lines[:-1]]
    (note,) = reader.notes
    assert f"line {len(lines) + 1}, column " in note
    assert "cut off" in note


def test_a_file_without_closing_bracket_is_read_with_a_note(tmp_path: Path) -> None:
    lines = sample_lines()
    reader = EventReader(write(tmp_path / "t.json", timeline_text(lines).removesuffix("]\n")))
    assert len(list(reader)) == len(lines)
    assert "closing bracket is missing" in reader.notes[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ts": "soon"}, "ts should be a number"),
        ({"ts": None}, "ts should be a number"),
        ({"ts": True}, "ts should be a number"),
        ({"ts": float("nan")}, "ts should be a number"),
        ({"ts": float("inf")}, "ts should be a number"),
        ({"ts": -5.0}, "ts goes back"),
        ({"pid": "one"}, "pid and tid should be numbers"),
        ({"pid": [1]}, "pid and tid should be numbers"),
        ({"ph": "E", "name": "QUEUE"}, "is open"),
    ],
)
def test_an_event_that_makes_no_sense_is_named_by_its_line(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    lines = sample_lines(steps=300)
    place = next(
        i for i, line in enumerate(lines) if i > 2 * BATCH + 5 and "GLOO" in line and '"B"' in line
    )
    lines[place] = json.dumps({**json.loads(lines[place]), **changes})
    error = error_of(write(tmp_path / "t.json", timeline_text(lines)))
    assert f"line {place + 2}: " in error
    assert reason in error


def test_an_end_without_a_beginning_is_an_error(tmp_path: Path) -> None:
    lines = sample_lines()
    lines.insert(2, json.dumps({"name": "X", "ph": "E", "ts": 1, "pid": 99}))
    assert "line 4: an E without a B" in error_of(write(tmp_path / "t.json", timeline_text(lines)))


# --- The first event -------------------------------------------------------------------------------


def with_args(path: Path, changes: dict[str, Any]) -> Path:
    lines = sample_lines()
    head = json.loads(lines[0])
    for key, value in changes.items():
        if value is None:
            del head["args"][key]
        else:
            head["args"][key] = value
    return write(path, timeline_text([json.dumps(head), *lines[1:]]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rank": None}, "rank or start time is missing"),
        ({"start_time_since_epoch_in_micros": None}, "rank or start time is missing"),
        ({"format": 2}, "timeline of format 2"),
        ({"format": None}, "timeline of format None"),
        ({"rank": 2}, "rank 2 of 2 ranks"),
        ({"rank": -1}, "rank -1 of 2 ranks"),
        ({"size": "2"}, "size should be a number"),
        ({"rank": 0.5}, "rank should be a whole number"),
        ({"hosts": ["a"]}, "list of 2 names"),
        ({"clock_offset_micros": "late"}, "clock_offset_micros should be a number"),
    ],
)
def test_a_first_event_that_makes_no_sense_is_explained(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(TimelineError, match=reason):
        read_header(with_args(tmp_path / "t.json", changes))


def test_a_trace_of_another_program_is_no_timeline(tmp_path: Path) -> None:
    text = timeline_text(['{"name": "f", "ph": "B", "ts": 0, "pid": 1}'])
    assert "line 2: no timeline of Horovod" in error_of(write(tmp_path / "t.json", text))


def test_a_merged_file_is_not_taken_for_the_file_of_a_rank(tmp_path: Path) -> None:
    paths = write_job(tmp_path / "t.json", Sample(size=2, steps=2))
    merge(open_job(paths), tmp_path / "m.json")
    assert "already merged" in error_of(tmp_path / "m.json")


# --- Which files belong together ---------------------------------------------------------------------


def test_files_are_sorted_by_rank_and_missing_ranks_are_noted(tmp_path: Path) -> None:
    paths = write_job(tmp_path / "t.json", Sample(size=6, steps=2), [4, 0, 1])
    job = open_job(paths)
    assert [files.rank for files in job.ranks] == [0, 1, 4]
    assert job.missing == [2, 3, 5]
    assert any("ranks 2, 3, 5" in note for note in job.notes)


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = write_job(tmp_path / "t.json", Sample(size=2, steps=2))
    copy = write(tmp_path / "copy.json", paths[1].read_bytes())
    with pytest.raises(TimelineError, match="both are of rank 1"):
        open_job([*paths, copy])


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    paths = write_job(tmp_path / "t.json", Sample(size=2, steps=2))
    assert len(open_job([*paths, *paths]).ranks) == 2


def test_files_of_jobs_of_other_sizes_or_hosts_are_refused(tmp_path: Path) -> None:
    (first,) = write_job(tmp_path / "a.json", Sample(size=2, steps=2), [0])
    (second,) = write_job(tmp_path / "b.json", Sample(size=4, steps=2), [1])
    (third,) = write_job(tmp_path / "c.json", Sample(size=2, steps=2, hosts=["x", "y"]), [1])
    with pytest.raises(TimelineError, match="one has 2 ranks, the other 4"):
        open_job([first, second])
    with pytest.raises(TimelineError, match="on different hosts"):
        open_job([first, third])


def test_lists_of_ranks_are_short() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([3, 4]) == "ranks 3, 4"
    assert ranks_text([0, 1, 2, 7]) == "ranks 0 to 2, 7"
    assert ranks_text(range(0, 40, 2)) == "ranks 0, 2, 4, 6, 8, 10, ..."


# --- A file that was full and the one after it -------------------------------------------------------


def outline(recording: Recording) -> dict[tuple[int | None, str], list[float]]:
    return {
        (op.response, op.name): [
            round(t, 2) for t in (op.announced, op.negotiated, op.execute_begin, op.end)
        ]
        for op in recording.operations
    }


def sum_of(recording: Recording) -> float:
    return sum(end - begin for begin, end in recording.blocked)


@pytest.mark.parametrize("moment", range(1_000, 100_000, 3_700))
def test_a_file_and_its_older_part_tell_the_same_as_one_file(moment: int, tmp_path: Path) -> None:
    sample = Sample(size=2, steps=4, late={1: 9_000}, data_wait=500)
    recorder = simulate(sample)[0]
    whole = record(write(tmp_path / "whole.json", timeline_text(recorder.lines())))
    older, newer = split(recorder, moment)
    write(tmp_path / "t.json.1", older)
    path = write(tmp_path / "t.json", newer)
    job = open_job([tmp_path / "t.json.1", path])  # as a shell expands t.json*
    parts = read_recording(job.ranks[0], whole.header.start)
    assert [part.path.name for part in job.ranks[0].parts] == ["t.json.1", "t.json"]
    assert outline(parts) == outline(whole)
    assert [step for step, _ in parts.steps] == [step for step, _ in whole.steps]
    assert sum_of(parts) == pytest.approx(sum_of(whole), abs=0.1)
    assert parts.unfinished == []


def test_an_older_part_of_another_recording_is_left_out_with_a_note(tmp_path: Path) -> None:
    path = write_job(tmp_path / "t.json", Sample(size=2, steps=3), [0])[0]
    early = Sample(size=2, steps=3, epoch=Sample().epoch - 3_600_000_000)
    older = timeline_text(simulate(early)[0].lines())
    write(tmp_path / "t.json.1", older)
    recording = record(path)
    assert len(recording.operations) == 3 * 4
    assert any("another recording" in note for note in recording.notes)


def test_an_older_part_that_is_broken_is_left_out_with_a_note(tmp_path: Path) -> None:
    path = write_job(tmp_path / "t.json", Sample(size=2, steps=3), [0])[0]
    write(tmp_path / "t.json.1", "nonsense")
    job = open_job([path])
    assert len(job.ranks[0].parts) == 1
    assert any("t.json.1" in note for note in job.notes)


# --- Recordings that end early -------------------------------------------------------------------------


def test_rows_that_are_open_at_the_end_are_unfinished_operations(tmp_path: Path) -> None:
    sample = Sample(size=3, steps=3, open_end=True, missing=1)
    write_job(tmp_path / "t.json", sample)
    recording = record(tmp_path / "t.json")
    assert {op.name for op in recording.unfinished} == {layer[0] for layer in sample.layers}
    assert all(set(op.ready) == {0, 2} for op in recording.unfinished)
    other = record(path_of(tmp_path / "t.json", 2))
    assert all(set(op.ready) == {2} for op in other.unfinished)
