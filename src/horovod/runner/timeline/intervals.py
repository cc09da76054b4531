"""Sets of time: sorted lists of disjoint (begin, end)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The time that is in any of `intervals`, which may overlap and come in any order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def intersect(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """The time that is in both."""
    common: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        if begin < end:
            common.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """The time that is in `first` and not in `second`."""
    left: list[Interval] = []
    j = 0
    for begin, end in first:
        at = begin
        while j < len(second) and second[j][1] <= at:
            j += 1
        k = j
        while k < len(second) and second[k][0] < end:
            if second[k][0] > at:
                left.append((at, second[k][0]))
            at = max(at, second[k][1])
            k += 1
        if at < end:
            left.append((at, end))
    return left


def total(intervals: list[Interval]) -> float:
    """How much time it is."""
    return sum(end - begin for begin, end in intervals)


def within(intervals: list[Interval], begin: float, end: float) -> list[Interval]:
    """The part between two times; fast also in a long list."""
    first = max(0, bisect_right(intervals, (begin,)) - 1)
    part: list[Interval] = []
    for i in range(first, len(intervals)):
        low, high = intervals[i]
        if low >= end:
            break
        if high > begin:
            part.append((max(low, begin), min(high, end)))
    return part
