"""Operations that all ranks submitted, under the same name, but not alike; and others that failed."""

from __future__ import annotations

from collections.abc import Callable

from horovod.runner.flight_recorder.align import Instance
from horovod.runner.flight_recorder.dump import Operation
from horovod.runner.flight_recorder.findings import FAILED, MISMATCH, Finding
from horovod.runner.flight_recorder.job import Job
from horovod.runner.flight_recorder.words import capital, names_text, quoted, ranks_text, verb

# Kinds whose first dimension is each rank's own affair.
_FREE_ROWS = ("allgather", "alltoall")


def _shape(operation: Operation) -> object:
    if operation.kind in _FREE_ROWS:
        return len(operation.shape), operation.shape[1:]
    return operation.shape


# What ranks have to agree on, in the order in which it is compared.
_ASPECTS: tuple[tuple[str, Callable[[Operation], object]], ...] = (
    ("kind of operation", lambda operation: operation.kind),
    ("data type", lambda operation: operation.dtype),
    ("shape", _shape),
    ("reduction operator", lambda operation: operation.op if operation.reduces else ""),
    (
        "root rank",
        lambda operation: operation.root if operation.kind == "broadcast" else -1,
    ),
    ("group", lambda operation: operation.group),
)


def compatible(one: Operation, other: Operation) -> bool:
    """Tells whether two operations agree in all but their names and groups."""
    return all(value(one) == value(other) for _, value in _ASPECTS[:-1])


def mismatches(job: Job) -> list[Finding]:
    """Returns a finding for each operation that ranks submitted differently."""
    found = []
    for instance in job.instances:
        states = {operation.state for operation in instance.by_rank.values()}
        if states <= {"done", "executing"} or len(instance.by_rank) < 2:
            continue
        for what, value in _ASPECTS:
            groups: dict[object, list[int]] = {}
            for rank, operation in sorted(instance.by_rank.items()):
                groups.setdefault(value(operation), []).append(rank)
            if len(groups) > 1:
                found.append(_finding(job, instance, what, sorted(groups.values(), key=_by_size)))
                break
    return found


def _by_size(ranks: list[int]) -> tuple[int, int]:
    return -len(ranks), ranks[0]


def _finding(job: Job, instance: Instance, what: str, groups: list[list[int]]) -> Finding:
    majority, *others = groups
    in_doubt = len(majority) == len(others[0])
    culprits = tuple(sorted(rank for group in others for rank in group))
    name = quoted(instance.name)

    def sent(ranks: list[int]) -> str:
        verb_text = verb(ranks, "has", "have")
        return f"{ranks_text(ranks)} {verb_text} {instance.by_rank[ranks[0]].describe()}"

    parts = "; ".join(sent(group) for group in groups[:4]) + ("; ..." if len(groups) > 4 else "")
    if in_doubt:
        first = f"The ranks submitted {name} with different {what}s: {parts}."
    else:
        first = f"{capital(ranks_text(culprits))} submitted {name} with another {what}: {parts}."
    errors = list(dict.fromkeys(op.error for op in instance.by_rank.values() if op.error))
    return Finding(
        MISMATCH,
        () if in_doubt else culprits,
        (first, "Give the operation the same arguments on all ranks."),
        tuple(f"The operation failed with: {error.strip()}" for error in errors[:2]),
        min(job.dumps[r].at(op.submitted) for r, op in instance.by_rank.items()),
    )


def failures(job: Job) -> list[Finding]:
    """Returns one finding for each error of operations that ranks submitted alike."""
    by_error: dict[str, list[tuple[float, Instance]]] = {}
    for instance in job.instances:
        failed = [(r, op) for r, op in instance.by_rank.items() if op.state == "failed"]
        for rank, operation in failed[:1]:
            when = job.dumps[rank].at(operation.finished or operation.submitted)
            by_error.setdefault(operation.error.strip(), []).append((when, instance))
    return [_failure(error, found) for error, found in by_error.items()]


def _failure(error: str, found: list[tuple[float, Instance]]) -> Finding:
    when, instance = min(found, key=lambda item: item[0])
    names = [other.name for _, other in found]
    ranks = sorted({rank for _, other in found for rank in other.by_rank})
    return Finding(
        FAILED,
        (),
        (
            (
                f"{names_text(names[:3])}{' and others' if len(names) > 3 else ''} failed on "
                f"{ranks_text(ranks)} though the dumps show no difference between the ranks: "
                f"{error or 'no reason was recorded'}"
            ),
        ),
        (f"First it was {quoted(instance.name)}.",) if len(names) > 1 else (),
        when,
    )
