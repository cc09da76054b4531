"""A job whose ranks agree: what was running, what took longest, and who came last."""

from __future__ import annotations

from collections import defaultdict

from horovod.runner.flight_recorder.align import Instance
from horovod.runner.flight_recorder.findings import NONE, Finding
from horovod.runner.flight_recorder.job import Job
from horovod.runner.flight_recorder.words import (
    capital,
    count,
    quoted,
    ranks_text,
    seconds,
    verb,
)

MATTERS = 1e-3  # seconds; clocks of hosts are seldom equal to less
OFTEN = 0.5  # share of the operations that one rank must be last in to be named


def no_divergence(job: Job) -> Finding:
    """Returns the finding that nothing diverged."""
    first = "No rank diverged: all ranks of its process set have submitted every operation in the dumps."
    newest = max(dump.time for dump in job.dumps.values())
    return Finding(NONE, (), (first, _running(job), *_slowest(job)), (), newest)


def _running(job: Job) -> str:
    running = [instance for instance in job.instances if _is_running(instance)]
    if not running:
        return "Nothing was under way: whatever takes long now is outside Horovod."
    texts = [_stage(job, instance) for instance in running[:3]]
    more = f" {count(len(running) - 3, 'more operation')}." if len(running) > 3 else ""
    return f"Under way: {'; '.join(texts)}.{more}"


def _is_running(instance: Instance) -> bool:
    return any(operation.state not in ("done", "failed") for operation in instance.by_rank.values())


def _stage(job: Job, instance: Instance) -> str:
    """Says how far an operation has come."""
    unfinished = {
        rank: operation
        for rank, operation in instance.by_rank.items()
        if operation.state not in ("done", "failed")
    }
    ages = [job.dumps[rank].monotonic - op.submitted for rank, op in unfinished.items()]
    executing = [rank for rank, op in unfinished.items() if op.state == "executing"]
    waiting = [rank for rank, op in unfinished.items() if op.state != "executing"]
    parts = []
    if executing:
        parts.append(f"executing on {ranks_text(executing)}")
    if waiting:
        parts.append(f"submitted and not begun on {ranks_text(waiting)}")
    done = [rank for rank, op in instance.by_rank.items() if op.state == "done"]
    if done:
        parts.append(f"done on {ranks_text(done)}")
    size = max(op.bytes for op in instance.by_rank.values())
    return f"{quoted(instance.name)} ({size} bytes, {', '.join(parts)}, for {seconds(max(ages))})"


def _slowest(job: Job) -> list[str]:
    return [*_longest(job), *_last_to_come(job)]


def _longest(job: Job) -> list[str]:
    """Names the operation whose execution took longest on the average."""
    times: dict[str, list[float]] = defaultdict(list)
    for dump in job.dumps.values():
        for op in dump.operations:
            if op.started is not None and op.finished is not None and op.state == "done":
                times[op.name].append(op.finished - op.started)
    if not times:
        return []
    name = max(times, key=lambda key: sum(times[key]) / len(times[key]))
    mean = sum(times[name]) / len(times[name])
    return [f"Longest to execute was {quoted(name)}, {seconds(mean)} on the average."]


def _last_to_come(job: Job) -> list[str]:
    """Names the rank that was the last to submit, if it is mostly the same."""
    last: dict[int, list[float]] = defaultdict(list)
    total = 0
    for instance in job.instances:
        if len(instance.by_rank) < 2 or len(instance.by_rank) < len(
            job.members(instance.process_set)
        ):
            continue
        times = sorted((job.dumps[r].at(op.submitted), r) for r, op in instance.by_rank.items())
        total += 1
        last[times[-1][1]].append(times[-1][0] - times[0][0])
    if not total:
        return []
    rank = max(last, key=lambda r: sum(last[r]))
    share = len(last[rank]) / total
    mean = sum(last[rank]) / len(last[rank])
    if share < OFTEN or mean < MATTERS:
        return ["No rank was the last to submit most of the time."]
    between = " (their clocks may differ)" if len(set(job.dumps[rank].hosts)) > 1 else ""
    return [
        (
            f"Rank {rank} on {job.dumps[rank].host} was the last to submit in {share:.0%} of "
            f"{total} operations, "
            f"{seconds(mean)} after the first on the average{between}: look at what it does between them."
        )
    ]


def absent_only(job: Job) -> str:
    """Says that ranks have no dump although nobody waits for them."""
    has = verb(job.absent, "has", "have")
    return f"{capital(ranks_text(job.absent))} {has} no dump, so what was done there is not known."
