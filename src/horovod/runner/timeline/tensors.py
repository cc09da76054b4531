"""The tensors that were waited for longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median

from horovod.runner.timeline.figures import TensorWait
from horovod.runner.timeline.lateness import Arrivals

MOST = 12


def longest_waits(
    arrivals: Arrivals,
    indices: Iterable[int],
    hosts: tuple[str, ...],
    blocked_on: dict[str, float] | None,
    most: int = MOST,
) -> list[TensorWait]:
    """The tensors with the longest sum of times between the first and the last rank's arrival.

    A wait that the clocks can't tell from none has no last rank.
    """
    waits: dict[str, list[float]] = {}
    last: dict[str, Counter[int]] = {}
    sample: dict[str, int] = {}
    for index in indices:
        ready = arrivals.of(index)
        if len(ready) < 2:
            continue
        name = arrivals.operations[index].name
        sample[name] = index
        latest = max(ready, key=lambda rank: (ready[rank], -rank))
        wait = ready[latest] - min(ready.values())
        waits.setdefault(name, []).append(wait)
        if wait > 2 * arrivals.clock_error:
            last.setdefault(name, Counter())[latest] += 1
    names = sorted(waits, key=lambda name: -sum(waits[name]))[:most]
    found = []
    for name in names:
        operation = arrivals.operations[sample[name]]
        ranks = last.get(name, Counter())
        rank, times = ranks.most_common(1)[0] if ranks else (None, 0)
        by_host = Counter[str]()
        for one, number in ranks.items():
            by_host[hosts[one]] += number
        host, host_times = by_host.most_common(1)[0] if by_host else (None, 0)
        found.append(
            TensorWait(
                name=name,
                kind=operation.kind,
                bytes=operation.bytes,
                times=len(waits[name]),
                waited=sum(waits[name]),
                typical=median(waits[name]),
                longest=max(waits[name]),
                last_rank=rank,
                last_share=times / len(waits[name]),
                last_host=host,
                last_host_share=host_times / len(waits[name]),
                blocked=None if blocked_on is None else blocked_on.get(name, 0.0),
            )
        )
    return [tensor for tensor in found if tensor.waited > 0]
