"""Who was waited for: when each rank was ready for each operation, and what its lateness cost the others."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from statistics import median, median_low

from horovod.runner.timeline.figures import Lateness, Steps, Straggler
from horovod.runner.timeline.intervals import Interval, intersect, total, union, within
from horovod.runner.timeline.recording import Operation, Recording
from horovod.runner.timeline.shares import own_time

# Below that share of a step nobody is called late.
LATE_SHARE = 0.005
ROUNDING = 0.01  # microseconds
# A clock that is known worse than this, in microseconds and as a share of a step, says nothing about
# lateness.
LEAST_CLOCK_LIMIT = 50.0
CLOCK_SHARE = 0.02


class Arrivals:
    """When each rank was ready for each operation of the reference rank.

    What a rank's own file says is better than what rank 0 heard: between hosts readiness travels through a
    tree, so rank 0 hears of several ranks at once. But where the rank's clock is known too badly for steps
    that take `step` microseconds, rank 0's word counts.
    """

    def __init__(self, reference: Recording, step: float) -> None:
        self.operations = reference.operations
        self.clock_error = 0.0  # the greatest of those ranks whose own word counts
        self.bad_clocks: list[int] = []  # ranks whose own word does not
        self._worst = max(LEAST_CLOCK_LIMIT, CLOCK_SHARE * step)
        self._heard = reference.header.rank == 0
        self._index = {(op.response, op.name): i for i, op in enumerate(self.operations)}
        self._own: dict[int, array[float]] = {}

    def add(self, recording: Recording) -> None:
        """Takes in what a rank says about itself."""
        rank, error = recording.header.rank, recording.header.clock_error
        if self._heard and error > self._worst:
            self.bad_clocks.append(rank)
            return
        self.clock_error = max(self.clock_error, error)
        times = array("d", [math.nan]) * len(self.operations)
        for operation in recording.operations:
            place = self._index.get((operation.response, operation.name))
            if place is not None and operation.response is not None:
                times[place] = own_time(operation, rank)
        self._own[rank] = times

    def of(self, index: int) -> dict[int, float]:
        """When each rank was ready for operation number `index`."""
        ready = self.operations[index].ready
        for rank, times in self._own.items():
            if not math.isnan(times[index]):
                ready[rank] = times[index]
        return ready


def by_step(operations: list[Operation], steps: Steps) -> list[list[int]]:
    """The numbers of the operations of each step: those that were agreed on in it."""
    members: list[list[int]] = [[] for _ in steps.numbers]
    for index, operation in enumerate(operations):
        agreed = operation.announced if math.isnan(operation.negotiated) else operation.negotiated
        # The mark of a step is written when its first tensor is agreed on; times are rounded.
        step = bisect_right(steps.bounds, agreed + ROUNDING) - 1
        if 0 <= step < len(members):
            members[step].append(index)
    return members


def lateness(
    arrivals: Arrivals,
    steps: Steps,
    hosts: tuple[str, ...],
    blocked: dict[int, list[Interval]],
) -> Lateness:
    """Finds the slowest rank of each step.

    A rank is late for an operation from when the median rank was ready for it (of an even number the
    earlier of the two) until it was; what counts is the operation of the step for which it was latest.
    `blocked` says when callers of each rank were blocked; without it no cost is known. Lateness below the
    error of the clocks or a small share of a step does not count.
    """
    members = by_step(arrivals.operations, steps)
    threshold = max(2 * arrivals.clock_error, LATE_SHARE * steps.typical if steps.marked else 0.0)
    matrix: list[array[float]] = []
    seen: set[int] = set()
    late: dict[int, list[float]] = {}
    costs: dict[int, list[float]] = {}
    nobody = 0
    for step, indices in enumerate(members):
        ready = [times for i in indices if len(times := arrivals.of(i)) > 1]
        most = _most_late(ready, len(hosts))
        matrix.append(most)
        for times in ready:
            seen.update(times)
        slowest = max(range(len(most)), key=most.__getitem__)
        if most[slowest] <= threshold:
            nobody += 1
            continue
        late.setdefault(slowest, []).append(most[slowest])
        cost = _cost(ready, slowest, blocked, steps.bounds[step])
        if cost is not None:
            costs.setdefault(slowest, []).append(cost)
    ranking = [
        Straggler(
            rank=rank,
            host=hosts[rank],
            steps=len(times),
            share=len(times) / len(members),
            late=median(times),
            cost=sum(costs[rank]) / len(costs[rank]) if rank in costs else None,
        )
        for rank, times in late.items()
    ]
    ranking.sort(key=lambda s: (-s.steps, -s.late, s.rank))
    return Lateness(
        ranks={rank: hosts[rank] for rank in sorted(seen)},
        matrix=matrix,
        ranking=ranking,
        nobody=nobody,
        threshold=threshold,
    )


def _most_late(ready: list[dict[int, float]], size: int) -> array[float]:
    """How late each rank was, for the operation for which it was latest."""
    late = array("d", [0.0]) * size
    for times in ready:
        middle = median_low(times.values())
        for rank, time in times.items():
            late[rank] = max(late[rank], time - middle)
    return late


def _cost(
    ready: list[dict[int, float]],
    slowest: int,
    blocked: dict[int, list[Interval]],
    begin: float,
) -> float | None:
    """How long another rank was blocked while the slowest was late, on average over those with a file."""
    others = [intervals for rank, intervals in blocked.items() if rank != slowest]
    if not others:
        return None
    late = union(
        (median_low(times.values()), times[slowest]) for times in ready if slowest in times
    )
    if not late:
        return 0.0
    first, last = min(late[0][0], begin), late[-1][1]
    return sum(total(intersect(within(b, first, last), late)) for b in others) / len(others)
