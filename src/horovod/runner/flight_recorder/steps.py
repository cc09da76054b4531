"""Training steps in a rank's operations: names that come again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from horovod.runner.flight_recorder.dump import DATA_KINDS, Operation
from horovod.runner.flight_recorder.names import is_generated


def step_lengths(operations: Sequence[Operation]) -> list[int]:
    """Returns how many named operations each step has, the last one perhaps unfinished.

    A step begins when a name comes that this step has had already, as in the timeline.
    """
    lengths: list[int] = []
    seen: set[str] = set()
    for operation in operations:
        if operation.kind not in DATA_KINDS or is_generated(operation.name):
            continue
        if not lengths or operation.name in seen:
            lengths.append(0)
            seen = set()
        seen.add(operation.name)
        lengths[-1] += 1
    return lengths


def period(lengths: Sequence[int]) -> int | None:
    """Returns how many operations a step has, None if that cannot be told.

    The first step does not count, because what is done once is part of it, and neither does the last.
    """
    inner = lengths[1:-1]
    if not inner:
        return None
    length, times = Counter(inner).most_common(1)[0]
    return length if 2 * times >= len(inner) else None
