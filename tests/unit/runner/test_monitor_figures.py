"""From snapshots to the numbers of the table."""

from __future__ import annotations

import msgpack
import pytest

from horovod.runner.monitor.board import Board
from horovod.runner.monitor.figures import (
    Figures,
    Mark,
    Trouble,
    keep_marks,
    rates_between,
    state_of,
    step_rate,
    total_of,
    worst_first,
)
from horovod.runner.monitor.snapshot import MAX_BYTES, Snapshot, decode

FIELDS = {
    "round": 0,
    "time": 10.0,
    "steps": 5,
    "bytes": 1000,
    "wait": 1.0,
    "in_flight": 2,
    "stalls": 0,
    "memory": 10**9,
    "late": {},
    "final": False,
}


def packed(**changes: object) -> bytes:
    return msgpack.packb({**FIELDS, **changes})


def snapshot(**changes: object) -> Snapshot:
    return decode(packed(**changes))


class Clock:
    """The launcher's clock, set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


# --- snapshots ---


def test_a_snapshot_is_read_as_it_was_written() -> None:
    assert snapshot(late={3: 0.5}, final=True) == Snapshot(
        0, 10.0, 5, 1000, 1.0, 2, 0, 10**9, {3: 0.5}, True
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no msgpack"),
        (b"\xc1", "no msgpack"),
        (packed() + b"x", "no msgpack"),
        (packed()[:-3], "no msgpack"),
        (msgpack.packb([1, 2]), "must be a map, not list"),
        (packed(steps=-1), "steps must be a whole number"),
        (packed(steps=2**63), "steps must be a whole number"),
        (packed(steps=True), "steps must be a whole number"),
        (packed(bytes="9" * 1000), "bytes must be a whole number"),
        (packed(wait=float("nan")), "wait must be a number of seconds"),
        (packed(time=float("inf")), "time must be a number of seconds"),
        (packed(late=[1]), "late must be a map"),
        (packed(late=dict.fromkeys(range(65), 1.0)), "late must be a map of at most 64"),
        (packed(late={"x": 1.0}), "late must be a whole number"),
        (msgpack.packb({}), "late must be a map"),
        (packed(pad="x" * MAX_BYTES), "may have 4096 bytes"),
    ],
)
def test_what_is_no_snapshot_is_refused_with_a_short_reason(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text) as raised:
        decode(data)
    assert len(str(raised.value)) < 200


def test_unknown_fields_of_a_later_version_do_no_harm() -> None:
    assert snapshot(invented=1) == snapshot()


# --- rates ---


def test_rates_are_differences_over_the_ranks_own_time() -> None:
    rates = rates_between(snapshot(), snapshot(time=14.0, steps=13, bytes=9000, wait=2.0))
    assert rates == (2.0, 2000.0, 0.25)


def test_there_is_no_rate_without_time() -> None:
    assert rates_between(snapshot(), snapshot()) == (None, None, None)


def test_steps_slower_than_the_snapshots_have_a_steady_rate() -> None:
    marks = [Mark(0.0, 10), Mark(4.0, 11), Mark(8.0, 12)]
    assert step_rate(marks, 8.0) == step_rate(marks, 11.0) == 0.25
    assert step_rate(marks[:1], 9.0) is None


def test_a_step_that_takes_too_long_lowers_the_rate() -> None:
    marks = [Mark(0.0, 0), Mark(1.0, 10)]
    assert step_rate(marks, 1.05) == 10.0
    assert step_rate(marks, 101.0) == 0.01


def test_marks_span_the_window_and_two_are_always_kept() -> None:
    marks = [Mark(float(t), t) for t in range(30)]
    assert keep_marks(marks)[0] == Mark(19.0, 19)
    assert keep_marks([Mark(0.0, 1), Mark(100.0, 2)]) == [Mark(0.0, 1), Mark(100.0, 2)]


# --- states ---


@pytest.mark.parametrize(
    ("last", "silent", "code", "expected"),
    [
        (None, 0.0, None, ("not initialized", Trouble.ABSENT)),
        (snapshot(), 4.9, None, ("", Trouble.NONE)),
        (snapshot(), 12.4, None, ("silent 12 s", Trouble.SILENT)),
        (snapshot(final=True), 99.0, None, ("shut down", Trouble.LEFT)),
        (snapshot(final=True), 99.0, 0, ("ended", Trouble.LEFT)),
        (snapshot(), 99.0, 137, ("exit 137", Trouble.FAILED)),
        (None, 0.0, 0, ("ended", Trouble.LEFT)),
    ],
)
def test_the_state_says_what_is_unusual(last, silent, code, expected) -> None:
    assert state_of(last, silent, code) == expected


def test_the_worst_are_the_failed_the_silent_and_those_that_are_waited_for() -> None:
    rows = [
        Figures(0, "a", step=10, waiting=0.5),
        Figures(1, "a", step=10, waiting=0.1),  # hardly waits: the others wait for it
        Figures(2, "a", step=9, waiting=0.6),  # behind
        Figures(3, "a", step=10, waiting=0.5, late=2.0),  # known to be late
        Figures(4, "a", trouble=Trouble.ABSENT),
        Figures(5, "a", step=10, trouble=Trouble.SILENT),
        Figures(6, "a", step=3, trouble=Trouble.FAILED),
        Figures(7, "a", step=10, waiting=0.5),
    ]
    assert [row.rank for row in worst_first(rows)] == [6, 5, 4, 3, 2, 1, 0, 7]


def test_the_total_is_the_slowest_step_and_the_sums() -> None:
    rows = [
        Figures(0, "a", 10, 2.0, 100.0, 0.5, 1, 1000, 2),
        Figures(1, "b", 9, 1.5, 100.0, 0.1, 2, 2000, 0, trouble=Trouble.SILENT),
        Figures(2, "b", trouble=Trouble.ABSENT),
    ]
    assert total_of(rows) == (
        3, 2, 9, 1.5, 200.0, 0.3, 3, 3000, 2, "1 silent, 1 not initialized"
    )  # fmt: skip
    assert total_of(rows[2:]) == (1, 1, *[None] * 7, "1 not initialized")


# --- the board ---


def test_the_board_shows_the_last_seconds_and_the_summary_all_of_them() -> None:
    clock = Clock()
    board = Board(2, clock)
    board.started(0, "node1")
    for second in range(61):
        steps = second if second < 50 else 50 + 10 * (second - 50)
        clock.now = 100.0 + second
        board.take(
            "0", packed(time=float(second), steps=steps, bytes=1000 * second, wait=second / 4)
        )
    row = board.rows()[0]
    assert (row.host, row.step, row.step_rate, row.bytes_rate, row.waiting) == (
        "node1", 150, 10.0, 1000.0, 0.25,
    )  # fmt: skip
    assert board.summary()[0].step_rate == 2.5
    assert board.rows()[1] == Figures(1, "?", state="not initialized", trouble=Trouble.ABSENT)


def test_silence_is_measured_by_the_launchers_clock() -> None:
    clock = Clock()
    board = Board(1, clock)
    board.take("0", packed(time=1e6))
    clock.now += 8
    assert board.rows()[0].state == "silent 8 s"
    board.take("0", packed(time=1e6 + 8))
    assert board.rows()[0].state == ""


def test_another_init_begins_anew() -> None:
    board = Board(1, Clock())
    board.take("0", packed(time=1.0, steps=1000))
    board.take("0", packed(time=2.0, steps=2000, final=True))
    board.take("0", packed(round=1, time=10.0, steps=0))
    board.take("0", packed(round=1, time=12.0, steps=4))
    row = board.rows()[0]
    assert (row.step, row.step_rate, row.state) == (4, 2.0, "")
    assert board.summary()[0].step_rate == 2.0


def test_what_rank_0_knows_of_late_ranks_stands_at_their_rows() -> None:
    board = Board(3, Clock())
    board.take("0", packed(late={2: 1.5, 99: 1.0}))
    assert [row.late for row in board.rows()] == [0.0, 0.0, 1.5]


@pytest.mark.parametrize("key", ["2", "-1", "x", "", "1" * 30, "１", " 0"])
def test_only_ranks_of_the_job_are_taken(key: str) -> None:
    with pytest.raises(ValueError, match="there is no rank"):
        Board(2).take(key, packed())


def test_the_board_does_not_grow_with_time() -> None:
    board = Board(1, Clock())
    for tick in range(5000):
        board.take("0", packed(time=tick / 10, steps=tick))
    (rank,) = board._ranks
    assert len(rank.recent) < 110 and len(rank.marks) < 110
