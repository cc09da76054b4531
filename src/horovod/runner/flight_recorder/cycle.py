"""Ranks that wait for each other: they do different things, and the smaller group is the one that diverged.

Where groups are equal, what ranks did in earlier steps decides, or nothing does.
"""

from __future__ import annotations

from dataclasses import dataclass

from horovod.runner.flight_recorder import evidence
from horovod.runner.flight_recorder.findings import (
    DIFFERENT,
    EXTRA,
    MISSING,
    NAMES,
    ORDER,
    SHORT,
    Finding,
)
from horovod.runner.flight_recorder.job import Job, Wait
from horovod.runner.flight_recorder.mismatch import compatible
from horovod.runner.flight_recorder.names import Difference, difference
from horovod.runner.flight_recorder.words import capital, count, quoted, ranks_text, verb

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class _Sides:
    """Two groups of ranks that do different things.

    Attributes:
        culprits: the smaller group, or whom the habits of earlier steps point at.
        rest: the other group.
        theirs: an operation that the culprits submitted and the rest did not.
        expected: one that the rest submitted and the culprits did not.
        in_doubt: the groups are equal, and nothing tells which is wrong.
    """

    culprits: Ranks
    rest: Ranks
    theirs: Wait
    expected: Wait
    in_doubt: bool = False

    def turned(self) -> _Sides:
        """The same with the blame on the others."""
        return _Sides(self.rest, self.culprits, self.expected, self.theirs)

    def decided(self) -> _Sides:
        """The same without doubt."""
        return _Sides(self.culprits, self.rest, self.theirs, self.expected)


def judge_cycle(job: Job, wait: Wait, own: dict[int, Wait]) -> Finding:
    """Every rank that lacks the operation waits for another one itself."""
    camps: dict[int, list[int]] = {}
    for rank, other in own.items():
        camps.setdefault(id(other), []).append(rank)
    if len(wait.has) == 1 and len(camps) > 1 and all(len(camp) == 1 for camp in camps.values()):
        return _all_different(job, wait, own)
    size = max(map(len, camps.values()))
    largest = next(tuple(camp) for camp in camps.values() if len(camp) == size)
    other = own[largest[0]]
    if len(largest) > len(wait.has):
        sides = _Sides(wait.has, largest, wait, other)
    elif len(wait.lacks) < len(wait.has) or len(camps) > 1:
        sides = _Sides(wait.lacks, wait.has, other, wait)
    else:
        sides = _Sides(largest, wait.has, other, wait, in_doubt=len(largest) == len(wait.has))
    pairs = _pairs(job, sides)
    if pairs:
        return _names(job, sides, pairs)
    knows_theirs = job.knows(sides.rest, sides.theirs.instance)
    knows_expected = job.knows(sides.culprits, sides.expected.instance)
    if knows_theirs and knows_expected:
        return _order(job, sides)
    if not knows_theirs and not knows_expected:
        return _different(job, sides)
    if sides.in_doubt:
        # Who calls what is new has left the path that both followed.
        return extra(
            job,
            *(
                (sides.culprits, sides.theirs, sides.expected)
                if knows_expected
                else (sides.rest, sides.expected, sides.theirs)
            ),
        )
    if knows_expected:
        return extra(job, sides.culprits, sides.theirs, sides.expected)
    return _left_out(job, sides)


def _pairs(job: Job, sides: _Sides) -> list[tuple[str, str, Difference]]:
    """Returns names that the sides use for what seems to be the same operation: rest's, culprits'.

    The operations that the sides wait for must be such a pair; others are added.
    """
    mine = _only_of(job, sides.culprits, sides.rest)
    theirs = _only_of(job, sides.rest, sides.culprits)
    pairs: list[tuple[str, str, Difference]] = []
    used: set[int] = set()
    for one in mine:
        if job.knows(sides.rest, one.instance):
            continue
        for i, other in enumerate(theirs):
            if i in used or job.knows(sides.culprits, other.instance):
                continue
            if one.instance.process_set != other.instance.process_set:
                continue
            if not compatible(one.instance.any_operation, other.instance.any_operation):
                continue
            point = difference(other.name, one.name)
            if point is not None:
                used.add(i)
                pairs.append((other.name, one.name, point))
                break
    names = {name for pair in pairs for name in pair[:2]}
    return pairs if sides.theirs.name in names else []


def _only_of(job: Job, ranks: Ranks, others: Ranks) -> list[Wait]:
    """Returns the waits of `ranks` that none of the `others` has submitted, in the order of submission."""
    found = [
        wait
        for wait in job.waits
        if set(ranks) & set(wait.has) and not set(others) & set(wait.has) and not wait.is_join
    ]
    return sorted(found, key=lambda wait: wait.instance.by_rank[wait.has[0]].serial)


def _facts(job: Job, sides: _Sides) -> tuple[str, ...]:
    return (
        *evidence.last_common(job, sides.expected.instance.process_set),
        evidence.submission(job, sides.expected),
        evidence.submission(job, sides.theirs),
        *evidence.doings(job, sides.culprits),
    )


def _when(sides: _Sides) -> float:
    return min(sides.theirs.when, sides.expected.when)


def _names(job: Job, sides: _Sides, pairs: list[tuple[str, str, Difference]]) -> Finding:
    points = list(dict.fromkeys(point.text for _, _, point in pairs))
    expected, theirs, point = next(
        (pair for pair in pairs if pair[1] == sides.theirs.name), pairs[0]
    )
    culprits, rest = sides.culprits, sides.rest
    if sides.in_doubt and not point.later:
        culprits, rest, expected, theirs = rest, culprits, theirs, expected
    calls = verb(culprits, "calls", "call")
    only = (
        f"by {points[0]}"
        if len(points) == 1
        else "in one point each: " + "; ".join(points[:3]) + ("; ..." if len(points) > 3 else "")
    )
    more = f" So do {count(len(pairs), 'pair')} of names in all." if len(pairs) > 1 else ""
    return Finding(
        NAMES,
        culprits,
        (
            (
                f"{capital(ranks_text(culprits))} {calls} {quoted(theirs)} what {ranks_text(rest)} "
                f"{verb(rest, 'calls', 'call')} {quoted(expected)}, and each waits for the other."
            ),
            f"The names differ only {only}.{more}",
            (
                f"Did {ranks_text(culprits)} build {verb(culprits, 'its', 'their')} model or optimizer "
                "twice, or "
                "in another order? Names are counted: build the same things in the same order on all "
                "ranks, or "
                "give names yourself."
            ),
        ),
        _facts(job, sides),
        _when(sides),
    )


def _order(job: Job, sides: _Sides) -> Finding:
    if sides.in_doubt:
        mine = job.keeps_habit(sides.culprits[0], sides.theirs.instance)
        others = job.keeps_habit(sides.rest[0], sides.expected.instance)
        if mine is not None and others is not None and mine != others:
            sides = sides.decided() if others else sides.turned()
    habit = "" if sides.in_doubt else _habit(job, sides)
    return Finding(
        ORDER,
        () if sides.in_doubt else sides.culprits,
        (
            (
                f"{capital(ranks_text(sides.culprits))} {verb(sides.culprits, 'calls', 'call')} "
                f"{quoted(sides.theirs.name)} where {ranks_text(sides.rest)} "
                f"{verb(sides.rest, 'calls', 'call')} {quoted(sides.expected.name)}; each waits for "
                "the other."
            ),
            (
                "Both did both before: these are the same operations in another order, and calls that "
                "block need "
                f"the same order on all ranks.{habit}"
            ),
            (
                "Call them in the same order (sort what comes from a set or a dict), or use the "
                "_async forms and "
                "wait when all are submitted."
            ),
        ),
        _facts(job, sides),
        _when(sides),
    )


def _habit(job: Job, sides: _Sides) -> str:
    if job.keeps_habit(sides.culprits[0], sides.theirs.instance) is False:
        return (
            f" {capital(ranks_text(sides.culprits))} kept to another order the time before, "
            f"{ranks_text(sides.rest)} did not change."
        )
    return ""


def extra(job: Job, culprits: Ranks, theirs: Wait, expected: Wait | None) -> Finding:
    """Returns the finding that `culprits` call `theirs`, which the others do not.

    Args:
        job: the job.
        culprits: who submitted it.
        theirs: the operation.
        expected: what the others wait for instead; None: nothing.
    """
    if expected is not None and _left_loop(job, culprits, theirs, expected):
        return _short(job, culprits, theirs, expected)
    lacks = ranks_text(theirs.lacks)
    first = (
        f"{capital(ranks_text(culprits))} {verb(culprits, 'calls', 'call')} {quoted(theirs.name)}, which "
        f"{lacks} {verb(theirs.lacks, 'has', 'have')} never called"
    )
    if expected is None:
        facts: tuple[str, ...] = tuple(evidence.doings(job, theirs.lacks))
        second = f"{capital(lacks)} {verb(theirs.lacks, 'waits', 'wait')} for nothing."
    else:
        facts = (evidence.submission(job, expected), *evidence.doings(job, culprits))
        second = (
            f"{capital(ranks_text(expected.has))} {verb(expected.has, 'goes', 'go')} on with "
            f"{quoted(expected.name)}, as in earlier steps."
        )
    alone = culprits == (0,)
    return Finding(
        EXTRA,
        culprits,
        (
            f"{first}.",
            second,
            "A collective needs all ranks of its process set: "
            + (
                "look for code under `if hvd.rank() == 0:`"
                if alone
                else "look for a branch on the rank"
            )
            + " (logging, checkpoints, evaluation), and call it on all ranks, or on none. It can also be "
            f"that {ranks_text(culprits)} had fewer batches and {verb(culprits, 'has', 'have')} left the "
            "loop.",
        ),
        (
            *evidence.last_common(job, theirs.instance.process_set),
            evidence.submission(job, theirs),
            *facts,
        ),
        theirs.when if expected is None else min(theirs.when, expected.when),
    )


def _left_loop(job: Job, culprits: Ranks, theirs: Wait, expected: Wait) -> bool:
    """Tells whether ranks rather had fewer batches than that they call something alone.

    Rank 0 is the one that calls things alone; but hardly a barrier.
    """
    instance = theirs.instance
    if 0 in culprits and instance.any_operation.kind != "barrier":
        return False
    process_set = expected.instance.process_set
    if instance.process_set != process_set:
        return False
    submitted = max(job.submitted(rank, process_set) for rank in expected.has)
    return all(
        job.ended_step(rank, process_set, submitted - instance.by_rank[rank].set_serial)
        for rank in culprits
    )


def _short(job: Job, culprits: Ranks, theirs: Wait, expected: Wait) -> Finding:
    number = theirs.instance.by_rank[culprits[0]].set_serial
    return Finding(
        SHORT,
        culprits,
        (
            (
                f"{capital(ranks_text(culprits))} ended a step after {count(number, 'operation')} and then "
                f"called {quoted(theirs.name)}, while {ranks_text(expected.has)} "
                f"{verb(expected.has, 'goes', 'go')} on with {quoted(expected.name)}, as in earlier steps."
            ),
            (
                f"So {verb(culprits, 'it', 'they')} had fewer batches. Give all ranks the same number "
                "(drop the last, or pad), or call hvd.join() when a rank has no more. If not, "
                f"{quoted(theirs.name)} is something that {ranks_text(culprits)} "
                f"{verb(culprits, 'calls', 'call')} alone, and needs all."
            ),
        ),
        (
            *evidence.last_common(job, expected.instance.process_set),
            evidence.submission(job, expected),
            evidence.submission(job, theirs),
            *evidence.doings(job, culprits),
        ),
        min(theirs.when, expected.when),
    )


def _left_out(job: Job, sides: _Sides) -> Finding:
    """Most ranks call something new, and the culprits go on with what all did before."""
    return Finding(
        MISSING,
        sides.culprits,
        (
            (
                f"{capital(ranks_text(sides.culprits))} never submitted {quoted(sides.expected.name)}, which "
                f"{ranks_text(sides.rest)} {verb(sides.rest, 'waits', 'wait')} for, and "
                f"{verb(sides.culprits, 'waits', 'wait')} for {quoted(sides.theirs.name)}, as in "
                "earlier steps."
            ),
            (
                f"Either {ranks_text(sides.culprits)} {verb(sides.culprits, 'leaves', 'leave')} the "
                "call out, or "
                f"{verb(sides.culprits, 'has', 'have')} more batches than the others, who left the loop."
            ),
        ),
        _facts(job, sides),
        _when(sides),
    )


def _different(job: Job, sides: _Sides) -> Finding:
    return Finding(
        DIFFERENT,
        () if sides.in_doubt else sides.culprits,
        (
            (
                f"{capital(ranks_text(sides.culprits))} {verb(sides.culprits, 'waits', 'wait')} for "
                f"{quoted(sides.theirs.name)}, and {ranks_text(sides.rest)} "
                f"{verb(sides.rest, 'waits', 'wait')} for {quoted(sides.expected.name)}; each lacks "
                "the other."
            ),
            (
                "No rank did either before. Either they call the same operations in another order, "
                "which calls "
                "that block may not, or one side takes another branch."
            ),
        ),
        _facts(job, sides),
        _when(sides),
    )


def _all_different(job: Job, wait: Wait, own: dict[int, Wait]) -> Finding:
    ranks = tuple(sorted({*wait.has, *own}))
    waits = {wait.has[0]: wait, **own}
    examples = "; ".join(f"rank {r}: {quoted(waits[r].name)}" for r in ranks[:4])
    return Finding(
        DIFFERENT,
        (),
        (
            (
                f"Each of {ranks_text(ranks)} waits for an operation of its own: {examples}"
                f"{'; ...' if len(ranks) > 4 else ''}."
            ),
            (
                "Names must be equal on all ranks: a rank's number, a random number or a path of a "
                "host in them "
                "does this."
            ),
        ),
        tuple(evidence.last_common(job, wait.instance.process_set)),
        min(other.when for other in waits.values()),
    )
