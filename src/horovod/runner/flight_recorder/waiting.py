"""Who is to blame for an operation that some ranks wait for, and what they do instead.

The ranks that are waited for either wait for nothing themselves (they stopped, left something out, or have
not come so far yet), or wait for other ranks in turn; those are in cycle.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from horovod.runner.flight_recorder import evidence
from horovod.runner.flight_recorder.cycle import extra, judge_cycle
from horovod.runner.flight_recorder.findings import (
    IDLE,
    JOIN,
    MISSING,
    NOTHING_SUBMITTED,
    SHORT,
    Finding,
)
from horovod.runner.flight_recorder.job import Job, Wait
from horovod.runner.flight_recorder.stacks import where
from horovod.runner.flight_recorder.words import (
    capital,
    count,
    names_text,
    quoted,
    ranks_text,
    verb,
)

Ranks = tuple[int, ...]


def judge(job: Job, wait: Wait, waits: Sequence[Wait]) -> Finding:
    """Returns who is to blame for the first of the waits, `wait`, which lacks a rank with a dump."""
    if wait.is_join:
        return _join(job, wait)
    own = _own(job, wait, waits)
    idle = tuple(rank for rank in wait.lacks if rank not in own)
    if not idle:
        return judge_cycle(job, wait, own)
    is_new = not job.knows(wait.lacks, wait.instance)
    began = all(job.submitted(rank, wait.instance.process_set) for rank in idle)
    if len(idle) == len(wait.lacks) > len(wait.has) and is_new and began:
        return extra(job, wait.has, wait, None)
    return _stopped(job, wait, idle)


def _own(job: Job, wait: Wait, waits: Sequence[Wait]) -> dict[int, Wait]:
    """Returns for the ranks that lack an operation the first one that they wait for themselves.

    One that they are blocked on comes before others. It must lack a rank that has `wait`'s.
    """
    own: dict[int, Wait] = {}
    for rank in wait.lacks:
        candidates = [
            other
            for other in waits
            if rank in other.has and not set(wait.has) <= set(other.has) and not other.is_join
        ]
        if candidates:
            own[rank] = min(
                candidates,
                key=lambda other: (
                    not job.is_blocked_on(rank, other.name),
                    other.instance.by_rank[rank].serial,
                ),
            )
    return own


def _stopped(job: Job, wait: Wait, idle: Ranks) -> Finding:
    """The ranks `idle` have not submitted the operation and wait for nothing that others lack."""
    instance = wait.instance
    who = capital(ranks_text(idle))
    others = ranks_text(wait.has)
    never = (
        f"{who} never submitted {quoted(wait.name)}, which {others} "
        f"{verb(wait.has, 'waits', 'wait')} for"
    )
    later = _later(job, wait, idle)
    kind, sentences = IDLE, [f"{never}."]
    if not any(job.dumps[rank].recorded for rank in idle):
        kind = NOTHING_SUBMITTED
        sentences = [
            (
                f"{who} {verb(idle, 'has', 'have')} submitted no operation at all since hvd.init(), while "
                f"{others} {verb(wait.has, 'waits', 'wait')} for {quoted(wait.name)}."
            )
        ]
    elif later:
        kind = MISSING
        sentences = [
            (
                f"{who} never submitted {quoted(wait.name)}, and went on: {names_text(later)} came "
                "after it on "
                f"{others}."
            ),
            (
                "Look for a branch that skips it there: a parameter that is not used, a condition on "
                "the data, "
                "`if hvd.rank() == ...`."
            ),
        ]
    elif (short := _short(job, wait, idle)) is not None:
        kind, sentences = SHORT, [never + ": " + short[0], *short[1:]]
    elif not job.knows(wait.lacks, instance):
        sentences.append(
            f"No rank did this operation before, so it may be one that only {others} "
            f"{verb(wait.has, 'calls', 'call')} (code under `if hvd.rank() == ...`), or "
            f"{ranks_text(idle)} {verb(idle, 'has', 'have')} not come to it yet."
        )
    sentences += _busy(job, idle)
    return Finding(
        kind,
        idle,
        tuple(sentences),
        (
            *evidence.last_common(job, instance.process_set),
            evidence.submission(job, wait),
            *evidence.doings(job, idle),
        ),
        wait.when,
    )


def _later(job: Job, wait: Wait, idle: Ranks) -> list[str]:
    """Returns the operations that came after this one on all that have it, and that idle ranks have."""
    here = {rank: operation.serial for rank, operation in wait.instance.by_rank.items()}
    names = []
    for other in job.instances:
        if other.process_set != wait.instance.process_set or not set(idle) <= other.by_rank.keys():
            continue
        common = other.by_rank.keys() & here.keys()
        if common and all(other.by_rank[rank].serial > here[rank] for rank in common):
            names.append(other.name)
    return names


def _short(job: Job, wait: Wait, idle: Ranks) -> list[str] | None:
    """Says how many operations and steps ranks are short that stopped at the end of one; None if not so."""
    process_set = wait.instance.process_set
    period = job.period(process_set)
    if period is None or not job.knows(idle, wait.instance):
        return None
    theirs = max(job.submitted(rank, process_set) for rank in wait.has)
    mine = [job.submitted(rank, process_set) for rank in idle]
    lack = theirs - min(mine)
    if not all(job.ended_step(rank, process_set, lack) for rank in idle):
        return None
    steps = -(-lack // period)
    about = "at least " if lack % period else ""
    has = f"{count(min(mine), 'operation')}{' or more' if len(set(mine)) > 1 else ''}"
    return [
        (
            f"{verb(idle, 'it', 'they')} stopped after {has} at the end of a step, {lack} short of "
            f"the {theirs} "
            f"that {ranks_text(wait.has)} submitted. A step has {count(period, 'operation')}, so that is "
            f"{about}{count(steps, 'step')}."
        ),
        (
            "Unequal numbers of batches do this: give all ranks the same number (drop the last, or pad), "
            "or call hvd.join() when a rank has no more. If it has not ended, it is held up between two "
            "steps, reading data perhaps."
        ),
    ]


def _busy(job: Job, idle: Ranks) -> list[str]:
    """Says where idle ranks are instead, if their stacks tell."""
    places = {rank: where(job.dumps[rank].stacks) for rank in idle}
    known = {rank: place for rank, place in places.items() if place}
    if not known:
        return []
    rank = min(known)
    others = f", and {count(len(known) - 1, 'other rank')} likewise" if len(known) > 1 else ""
    blocked = job.dumps[rank].blocked
    doing = f"is blocked on {quoted(blocked[0].name)}" if blocked else "was busy outside Horovod"
    return [f"Rank {rank} {doing} at {known[rank]}{others}."]


def _join(job: Job, wait: Wait) -> Finding:
    return Finding(
        JOIN,
        wait.lacks,
        (
            (
                f"{capital(ranks_text(wait.has))} {verb(wait.has, 'has', 'have')} joined, and "
                f"{ranks_text(wait.lacks)} {verb(wait.lacks, 'has', 'have')} not."
            ),
            (
                "That is as it should be while they have data left; if they have ended, let them call "
                "hvd.join() too."
            ),
            *_busy(job, wait.lacks),
        ),
        tuple(evidence.doings(job, wait.lacks)),
        wait.when,
    )
