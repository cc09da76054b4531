"""The check of nesting: it passes what viewers accept and finds what they do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from timeline_samples import Sample, simulate

from horovod.runner.timeline import check_nesting


def event(ph: str, name: str | None, ts: Any, pid: int = 1, **more: Any) -> dict[str, Any]:
    return {"ph": ph, "name": name, "ts": ts, "pid": pid, **more}


def test_a_sample_is_nested() -> None:
    for recorder in simulate(Sample(size=3, late={1: 5_000}, data_wait=100, cycles=True)):
        assert check_nesting(json.loads(line) for line in recorder.lines()) == []


def test_rows_are_independent() -> None:
    events = [
        event("B", "a", 5),
        event("B", "b", 1, pid=2),
        event("B", "c", 3, tid=7),
        event("E", "b", 2, pid=2),
        event("E", "c", 4, tid=7),
        event("E", "a", 6),
    ]
    assert check_nesting(events) == []


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([event("E", "a", 1)], "event 1 on row 1: E 'a' ends nothing"),
        ([event("B", "a", 1), event("E", "b", 2)], "E 'b' ends 'a'"),
        ([event("B", "a", 2), event("E", "a", 1)], "at 1 comes after an event at 2"),
        ([event("B", "a", 1)], "row 1: 'a' of event 1 is never ended"),
        ([event("X", "0", 1, dur=0)], "X '0' lies in no B"),
        ([event("B", "a", 1), event("X", "0", 2, dur=-1), event("E", "a", 3)], "a dur of -1"),
        ([event("B", "a", 1), event("X", "0", 2, dur=5), event("E", "a", 3)], "ends at 7"),
        ([event("B", "a", 1), event("X", "0", 0, dur=0), event("E", "a", 3)], "comes after"),
        ([event("B", "a", None)], "no ts that is a number"),
        ([event("B", "a", float("nan"))], "no ts that is a number"),
        (
            [event("B", "a", 1), event("B", "b", 2), event("E", "a", 3), event("E", "b", 4)],
            "E 'a' ends 'b'",
        ),
    ],
)
def test_each_fault_is_found(events: list[dict[str, Any]], fault: str) -> None:
    assert any(fault in text for text in check_nesting(events))


def test_an_end_without_name_ends_whatever_is_open() -> None:
    assert check_nesting([event("B", "a", 1), event("E", None, 1)]) == []


def test_what_is_open_at_the_end_may_be_allowed() -> None:
    assert check_nesting([event("B", "a", 1)], may_end_open=True) == []


def test_instants_and_metadata_are_not_nested() -> None:
    events = [event("i", "STEP", 9, s="p"), {"ph": "M", "name": "process_name", "pid": 1}]
    assert check_nesting([*events, event("B", "a", 1), event("E", "a", 2)]) == []
