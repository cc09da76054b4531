"""Sets of time, against counting unit by unit."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from horovod.runner.timeline.intervals import intersect, subtract, total, union, within

END = 60
interval = st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda p: (min(p), max(p)))
intervals = st.lists(interval, max_size=12)


def units(ranges: list[tuple[float, float]]) -> set[int]:
    """The whole units of time that are covered."""
    return {t for begin, end in ranges for t in range(int(begin), int(end))}


@given(intervals)
def test_union_covers_what_its_parts_cover_and_is_sorted_and_disjoint(a: list) -> None:
    merged = union(a)
    assert units(merged) == units(a)
    assert all(x[1] < y[0] for x, y in itertools.pairwise(merged))
    assert total(merged) == len(units(a))


@given(intervals, intervals)
def test_intersection_and_difference_are_those_of_sets(a: list, b: list) -> None:
    assert units(intersect(union(a), union(b))) == units(a) & units(b)
    assert units(subtract(union(a), union(b))) == units(a) - units(b)


@given(intervals, interval)
def test_within_clips(a: list, window: tuple[int, int]) -> None:
    assert units(within(union(a), *window)) == units(a) & units([window])
