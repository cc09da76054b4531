"""From timelines to programs: what a rank computes is found again, whatever the network was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from horovod.runner.scaling.cluster import Cluster, Cost, ring
from horovod.runner.scaling.model import Options, play, predict
from horovod.runner.scaling.programs import (
    InputError,
    Program,
    Submit,
    Wait,
    model_json,
    read_model,
)
from horovod.runner.scaling.trace import read_recording, read_workload

ALONE = Cluster(1, 1, 1e9, 1e-6, 1e9, 1e-6)
AT_ONCE = Options(threshold=0, cycle=0.0)


class Recorder:
    """Plays a program for some steps, with an exchange that takes `seconds`, and writes its timeline."""

    def __init__(self, rank: int = 0, size: int = 2) -> None:
        self.rank, self.size = rank, size
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.waits: list[dict[str, Any]] = []
        self.clock, self.free, self.count = 0.0, 0.0, 0

    def step(self, program: Program, seconds: float) -> None:
        done: dict[str, float] = {}
        for action in program.actions:
            self.clock += action.gap
            if isinstance(action, Submit):
                begin = max(self.clock, self.free)
                self.free = done[action.name] = begin + seconds
                self.row(action.name, self.clock, begin, self.free, action.size)
            else:
                until = max(done.values()) if action.name is None else done[action.name]
                if until > self.clock:  # who need not wait is not recorded
                    arguments = {} if action.name is None else {"args": {"tensor": action.name}}
                    self.waits.append({"name": "WAIT", "ph": "B", "ts": self.clock, **arguments})
                    self.waits.append({"name": "WAIT", "ph": "E", "ts": until})
                    self.clock = until
        self.clock += program.tail

    def row(self, name: str, ready: float, begin: float, end: float, size: float) -> None:
        # Others were ready a little before this one, or, every second time, later.
        self.count += 1
        others = [(5, ready - 1e-5), (7, ready + 3e-3 * (self.count % 2))]
        ranks = sorted([*others, (self.rank, ready)], key=lambda mark: mark[1])
        self.rows.setdefault(name, []).extend(
            [
                {"name": "NEGOTIATE_ALLREDUCE", "ph": "B", "ts": ready - 1e-5},
                *({"name": str(r), "ph": "X", "dur": 0, "ts": ts} for r, ts in ranks),
                {"ph": "E", "ts": begin},
                {"name": "ALLREDUCE", "ph": "B", "ts": begin},
                {"name": "QUEUE", "ph": "B", "ts": begin},
                {"ph": "E", "ts": begin},
                {"name": "GLOO_ALLREDUCE", "ph": "B", "ts": begin},
                {"ph": "E", "ts": end},
                {"ph": "E", "ts": end, "args": {"dtype": "float32", "shape": "[2]", "bytes": size}},
            ]
        )

    def write(self, path: Path, waits: bool = True) -> Path:
        arguments = {"name": "Horovod", "rank": self.rank, "size": self.size}
        if waits:
            arguments["format"] = 1
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 0, "args": arguments},
            {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
        ]
        for pid, (name, row) in enumerate(self.rows.items(), 1):
            events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}})
            events += [{**event, "pid": pid} for event in row]
        if waits and self.waits:
            pid = len(self.rows) + 1
            named = {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": "synchronize"}}
            events += [named, *({**event, "pid": pid, "tid": 1} for event in self.waits)]
        for event in events:
            if "ts" in event:
                event["ts"] = round(event["ts"] * 1e6, 3)
        path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
        return path


TRAINING = Program(
    (
        Submit(0.0, 'fc "1"\n', 4e6),
        Submit(0.01, "conv", 1e6),
        Submit(0.03, "stem", 1e5),
        Wait(0.005),
    ),
    tail=0.02,
)
BLOCKING = Program(
    (Submit(0.0, "a", 8), Wait(0.0, "a"), Submit(0.02, "b", 8), Wait(0.0, "b")), tail=0.03
)


def record(path: Path, program: Program, seconds: float, rank: int = 0, **options: bool) -> Path:
    recorder = Recorder(rank)
    for _ in range(6):
        recorder.step(program, seconds)
    return recorder.write(path, **options)


@pytest.mark.parametrize("program", [TRAINING, BLOCKING])
@pytest.mark.parametrize("seconds", [1e-4, 0.02, 0.3])
def test_computing_is_found_again_whatever_the_exchange_took(
    tmp_path: Path, program: Program, seconds: float
) -> None:
    workload, notes = read_workload([record(tmp_path / "t.json", program, seconds)])
    assert notes == []
    for found in workload.programs:
        assert found.compute == pytest.approx(program.compute, abs=2e-5)
        assert found.bytes == program.bytes
        assert found.tensors == program.tensors


@pytest.mark.parametrize("program", [TRAINING, BLOCKING])
@pytest.mark.parametrize("recorded", [0.02, 0.3])
@pytest.mark.parametrize("other", [0.0, 0.05, 1.0])
def test_a_recording_on_one_network_predicts_the_step_on_another(
    tmp_path: Path, program: Program, recorded: float, other: float
) -> None:
    workload, _ = read_workload([record(tmp_path / "t.json", program, recorded)])

    def exchange(size: float, cluster: Cluster) -> Cost:
        return Cost(bandwidth=other)

    expected = play(program, ALONE, exchange, AT_ONCE).step
    assert predict(workload.programs, ALONE, exchange, AT_ONCE).step == pytest.approx(
        expected, abs=1e-4
    )


def test_what_was_done_early_on_a_fast_network_is_waited_for_on_a_slow_one(tmp_path: Path) -> None:
    actions = (Submit(0.0, "a", 8), Submit(0.0, "b", 8), Wait(0.0, "a"), Wait(0.002, "b"))
    workload, _ = read_workload([record(tmp_path / "t.json", Program(actions, 0.02), 0.001)])
    seen = [action.name for action in workload.programs[0].actions]
    assert seen == ["a", "b", None]  # b had come before anybody asked for it

    def slow(size: float, cluster: Cluster) -> Cost:
        return Cost(bandwidth=1.0)

    assert predict(workload.programs, ALONE, slow, AT_ONCE).step == pytest.approx(2.022, abs=1e-4)


def test_without_rows_of_waiting_the_ends_of_the_tensors_tell(tmp_path: Path) -> None:
    program = Program((Submit(0.0, "a", 8), Submit(0.04, "b", 8), Wait(0.0)), tail=0.06)
    path = record(tmp_path / "t.json", program, 0.2, waits=False)
    workload, _ = read_workload([path])
    assert workload.programs[0].compute == pytest.approx(0.1, abs=2e-5)


def test_of_several_ranks_the_slowest_counts(tmp_path: Path) -> None:
    slow = Program((Submit(0.0, "a", 8), Submit(0.09, "b", 8), Wait(0.0)), tail=0.01)
    fast = Program((Submit(0.0, "a", 8), Submit(0.01, "b", 8), Wait(0.0)), tail=0.01)
    paths = [
        record(tmp_path / "t.json", fast, 0.01),
        record(tmp_path / "t.rank1.json", slow, 0.01, rank=1),
    ]
    workload, _ = read_workload(paths)
    assert workload.programs[0].compute == pytest.approx(0.1, abs=2e-5)


def test_steps_unlike_most_are_left_out(tmp_path: Path) -> None:
    recorder = Recorder()
    odd = Program((Submit(0.0, "a", 8), Submit(0.0, "metric", 4), Wait(0.0)), tail=5.0)
    usual = Program((Submit(0.0, "a", 8), Wait(0.0)), tail=0.1)
    for program in [usual] * 5 + [odd] + [usual] * 5:
        recorder.step(program, 0.01)
    workload, _ = read_workload([recorder.write(tmp_path / "t.json")])
    assert all(one.compute == pytest.approx(0.1, abs=2e-5) for one in workload.programs)
    assert len(workload.programs) == 7


def test_waits_of_several_threads_count_once(tmp_path: Path) -> None:
    path = record(tmp_path / "t.json", TRAINING, 0.3)
    events = json.loads(path.read_text())
    waits = [event for event in events if event.get("tid") == 1]
    # Another thread waits for something, from and until the same moments.
    events += [{**event, "tid": 2, "args": {"tensor": "conv"}} for event in waits]
    path.write_text(json.dumps(events))
    workload, _ = read_workload([path])
    assert workload.programs[0].compute == pytest.approx(TRAINING.compute, abs=2e-5)


def test_rows_left_open_by_a_kill_are_no_error(tmp_path: Path) -> None:
    path = record(tmp_path / "t.json", TRAINING, 0.01)
    events = json.loads(path.read_text())
    path.write_text(json.dumps(events[: len(events) - 40]))  # waits and the last tensor's ends
    assert read_recording(path).uses


def test_other_operations_are_named_as_left_out(tmp_path: Path) -> None:
    path = record(tmp_path / "t.json", TRAINING, 0.01)
    text = path.read_text().replace('"ALLREDUCE"', '"ALLGATHER"', 6)
    path.write_text(text)
    _, notes = read_workload([path])
    assert len(notes) == 1 and "6 allgather operations" in notes[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "found an empty file"),
        (b"hello", "line 1, column 1: expected a timeline"),
        (b'[\n{"name":"process_name"},\n{"na', "line 3, column 2.*cut off"),
        (b"[1, 2]", "event 1: expected an object, found int"),
        (b"{}", "--from-json"),
        (b"[]", "expected at least two training steps"),
        (b"\xff\xfe[]", "expected UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (
            b'[{"ph":"M","pid":1,"name":"process_name"},{"ph":"B","pid":1,"ts":"soon"}]',
            "event 2: expected a number as ts, found 'soon'",
        ),
    ],
)
def test_what_is_no_timeline_is_refused_with_file_and_position(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=expected) as caught:
        read_workload([path])
    assert str(path) in str(caught.value)


def test_a_model_is_written_and_read_again(tmp_path: Path) -> None:
    workload, _ = read_workload([record(tmp_path / "t.json", TRAINING, 0.02)])
    (tmp_path / "m.json").write_text(model_json(workload))
    again = read_model(tmp_path / "m.json")
    cluster = Cluster(8, 1, 1e8, 1e-4, 1e9, 1e-6)
    before = predict(workload.programs, cluster, ring)
    after = predict(again.programs, cluster, ring)
    assert after.step == pytest.approx(before.step, rel=1e-6)
    assert after.compute == pytest.approx(before.compute, rel=1e-6)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], "expected an object"),
        ({"format": "horovod-model", "version": 2}, "expected version 1, found 2"),
        ({"format": "horovod-model", "version": 1}, "compute_seconds: expected a number"),
        (
            {"format": "horovod-model", "version": 1, "compute_seconds": 1, "tensors": []},
            "at least one tensor",
        ),
        (
            {
                "format": "horovod-model", "version": 1, "compute_seconds": 1,
                "tensors": [{"bytes": -4, "ready_seconds": 0}],
            },
            r"tensors\[0\]: bytes: expected a number from 0 up, found -4",
        ),
        (
            {
                "format": "horovod-model", "version": 1, "compute_seconds": 1,
                "tensors": [{"name": "g", "bytes": 4, "ready_seconds": 2}],
            },
            "'g' ready at 2.0 s, wait_seconds 1.0, compute_seconds 1.0",
        ),
    ],
)  # fmt: skip
def test_a_model_that_makes_no_sense_is_refused(
    tmp_path: Path, document: object, expected: str
) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=expected):
        read_model(path)
