"""Where a rank's time goes: compute, waiting for others, communicating."""

from __future__ import annotations

import math

from horovod.runner.timeline.figures import RankShare, Steps
from horovod.runner.timeline.intervals import Interval, intersect, subtract, total, union, within
from horovod.runner.timeline.recording import Operation, Recording


def share_of(recording: Recording, steps: Steps) -> RankShare:
    """The partition of the time of `steps`, as far as the rank recorded it.

    Communicating is when a caller is blocked while a response is executed and does not wait for data;
    waiting is when a caller is blocked otherwise; the rest is compute. Where no caller is ever blocked,
    as with the kernels of TensorFlow, it is communicating while a response is executed, and waiting while
    a tensor of this rank is negotiated or its execution waits for data.
    """
    rank = recording.header.rank
    begin = max(steps.bounds[0], recording.begin)
    end = max(begin, min(steps.bounds[-1], recording.end))
    executing = _executing(recording, begin, end)
    data = within(union(w for op in recording.operations for w in op.data_waits), begin, end)
    transfer = subtract(executing, data)
    if recording.has_waits:
        blocked = within(union(recording.blocked), begin, end)
        communicating = total(intersect(blocked, transfer))
        waiting = total(blocked) - communicating
        hidden = total(transfer) - communicating
        data_wait = total(intersect(blocked, data))
    else:
        negotiating = within(union(_negotiating(recording, rank)), begin, end)
        communicating = total(transfer)
        waiting = total(subtract(union([*negotiating, *data]), transfer))
        hidden = 0.0
        data_wait = total(data)
    wall = end - begin
    return RankShare(
        rank=rank,
        host=recording.header.host,
        wall=wall,
        compute=max(0.0, wall - waiting - communicating),
        waiting=waiting,
        communicating=communicating,
        hidden=hidden,
        data_wait=data_wait,
        from_callers=recording.has_waits,
    )


def _executing(recording: Recording, begin: float, end: float) -> list[Interval]:
    executed = [
        (op.execute_begin, op.execute_end if not math.isnan(op.execute_end) else recording.end)
        for op in [*recording.operations, *recording.unfinished]
        if not math.isnan(op.execute_begin)
    ]
    return within(union(executed), begin, end)


def _negotiating(recording: Recording, rank: int) -> list[Interval]:
    """From this rank's own submission on; what others submitted before does not keep it waiting."""
    return [
        (own_time(op, rank), recording.end if math.isnan(op.negotiated) else op.negotiated)
        for op in [*recording.operations, *recording.unfinished]
    ]


def own_time(operation: Operation, rank: int) -> float:
    """When `rank`, whose file it is, submitted the operation."""
    return operation.ready.get(rank, operation.announced)
