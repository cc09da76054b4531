"""The table as text: columns, narrow and low terminals, many ranks, colours."""

from __future__ import annotations

import re

import pytest

from horovod.runner.monitor.figures import Figures, Trouble
from horovod.runner.monitor.table import Style, quantity, rate, render

WIDE = Style(120, 40)


def ranks(count: int, **changes: object) -> list[Figures]:
    return [
        Figures(n, f"node{n // 8}", 1200, 3.25, 1.25e9, 0.4, 2, 2 * 10**9, 0)._replace(**changes)
        for n in range(count)
    ]


def plain(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


def test_title_columns_ranks_and_total() -> None:
    rows = ranks(2)
    rows[1] = rows[1]._replace(late=0.51, stalls=1, step=1199, waiting=0.0)
    assert render(rows, "2 ranks after 00:01:40", WIDE) == [
        "2 ranks after 00:01:40",
        "rank  host      step  step/s   bytes/s  waiting  in flight   memory  stalls   late",
        "   0  node0     1200    3.25   1.25 GB      40%          2  2.00 GB       0",
        "   1  node0     1199    3.25   1.25 GB       0%          2  2.00 GB       1  0.5 s",
        " all  1 host    1199    3.25   2.50 GB      20%          4  4.00 GB       1",
    ]


def test_what_is_not_known_is_a_dash_and_the_state_says_why() -> None:
    rows = [Figures(0, "a", state="not initialized", trouble=Trouble.ABSENT)]
    assert render(rows, "t", WIDE)[2].split() == [
        *("0", "a"), *["-"] * 7, *("not", "initialized"),
    ]  # fmt: skip


def test_too_many_ranks_the_worst_first_then_how_many_more() -> None:
    rows = ranks(256)
    rows[200] = rows[200]._replace(state="silent 9 s", trouble=Trouble.SILENT)
    rows[17] = rows[17]._replace(step=1100)
    lines = render(rows, "t", Style(120, 12))
    assert len(lines) == 12
    assert [line.split()[0] for line in lines[2:]] == [
        *("200", "17", "0", "1", "2", "3", "4", "5"), "…", "all",
    ]  # fmt: skip
    assert lines[-2] == "… 248 more"
    assert lines[-1].endswith("1 silent")
    assert render(rows, "t", Style(120, 12, ellipsis="..."))[-2] == "... 248 more"


def test_when_all_fit_they_stand_in_their_order() -> None:
    rows = ranks(9)
    rows[7] = rows[7]._replace(trouble=Trouble.FAILED, state="exit 1")
    lines = render(rows, "t", Style(120, 12))
    assert [line.split()[0] for line in lines[2:-1]] == [str(n) for n in range(9)]


@pytest.mark.parametrize("height", range(1, 14))
@pytest.mark.parametrize("width", [1, 8, 20, 39, 60, 79, 200])
def test_no_line_is_wider_and_there_are_no_more_than_asked_for(height: int, width: int) -> None:
    rows = ranks(40, host="a-host-with-quite-a-long-name.example.org", state="silent 100 s")
    for colours in (False, True):
        lines = render(rows, "a title that is too long for many", Style(width, height, colours))
        assert 1 <= len(lines) <= height
        assert all(len(plain(line)) <= width for line in lines)


def test_a_narrow_terminal_keeps_rank_rate_and_waiting() -> None:
    lines = render(ranks(2), "t", Style(30, 20))
    assert lines[1].split() == ["rank", "step", "step/s", "waiting"]
    assert render(ranks(2), "t", Style(22, 20))[1].split() == ["rank", "step/s", "waiting"]
    assert "host" in render(ranks(2), "t", Style(60, 20))[1]


def test_a_low_terminal_keeps_the_total() -> None:
    assert [line.split()[0] for line in render(ranks(5), "t", Style(80, 2))] == ["rank", "all"]
    assert [line.split()[0] for line in render(ranks(5), "t", Style(80, 1))] == ["all"]
    assert [line.split()[0] for line in render(ranks(5), "t", Style(80, 4))] == [
        *("t", "rank", "…", "all"),
    ]  # fmt: skip
    assert render(ranks(5), "t", Style(80, 4))[2] == "… 5 ranks"


def test_colours_only_where_they_are_asked_for_and_always_ended() -> None:
    rows = ranks(3)
    rows[1] = rows[1]._replace(trouble=Trouble.SILENT, state="silent 9 s")
    without = render(rows, "t", WIDE)
    assert not any("\x1b" in line for line in without)
    with_colours = render(rows, "t", WIDE._replace(colours=True))
    assert [plain(line).rstrip() for line in with_colours] == without
    assert with_colours[3].startswith("\x1b[31m") and "\x1b" not in with_colours[2]
    assert all(line.endswith("\x1b[0m") for line in with_colours if "\x1b" in line)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"), (999, "999 B"), (999.6, "1.00 kB"), (1000, "1.00 kB"), (9994, "9.99 kB"),
        (9996, "10.0 kB"), (99960, "100 kB"), (999_600, "1.00 MB"), (1.25e9, "1.25 GB"),
        (8e18, "8000 PB"),
    ],
)  # fmt: skip
def test_bytes_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.000"), (0.0333, "0.033"), (0.5, "0.50"), (12.34, "12.3"), (1234.5, "1234")],
)
def test_rates_have_about_three_digits(value: float, text: str) -> None:
    assert rate(value) == text
