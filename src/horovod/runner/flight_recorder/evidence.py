"""What in the dumps supports a finding, in sentences."""

from __future__ import annotations

from collections.abc import Iterable

from horovod.runner.flight_recorder.job import Job, Wait
from horovod.runner.flight_recorder.words import (
    LISTED,
    capital,
    quoted,
    ranks_text,
    seconds,
    verb,
)

LONGEST = 600  # characters of a reason


def last_common(job: Job, process_set: int) -> list[str]:
    """Says what the ranks of a set agreed on last."""
    instance = job.last_common(process_set)
    of_set = f" of process set {process_set}" if process_set else ""
    if instance is None:
        return [f"The dumps show no operation{of_set} that all ranks agreed on."]
    number = min(operation.set_serial for operation in instance.by_rank.values())
    return [
        f"The last operation{of_set} that all ranks agreed on is number {number}, {quoted(instance.name)}."
    ]


def submission(job: Job, wait: Wait) -> str:
    """Says who submitted an operation, when, and whether they are blocked on it."""
    has = wait.has
    operation = wait.instance.by_rank[has[0]]
    ages = [job.dumps[r].monotonic - wait.instance.by_rank[r].submitted for r in has]
    blocked = [rank for rank in has if job.is_blocked_on(rank, wait.name)]
    text = (
        f"{capital(ranks_text(has))} submitted {quoted(wait.name)} ({operation.describe()}, number "
        f"{operation.set_serial}) {seconds(max(ages))} before the dump"
    )
    if blocked == list(has):
        return f"{text} and {verb(has, 'is', 'are')} blocked on it."
    if blocked:
        return f"{text}; {ranks_text(blocked)} {verb(blocked, 'is', 'are')} blocked on it."
    elsewhere = {dump.blocked[0].name for r in has if (dump := job.dumps[r]).blocked}
    if len(elsewhere) == 1:
        return f"{text}; callers there are blocked on {quoted(elsewhere.pop())}."
    return f"{text}; no caller is blocked on it."


def doings(job: Job, ranks: Iterable[int]) -> list[str]:
    """Says what ranks were doing, those that did the same in one sentence."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(job.describe(rank), []).append(rank)
    texts = []
    for text, members in groups.items():
        if len(members) > 1:
            text = text.replace("has submitted", "each have submitted", 1)
            text = text.replace("is blocked", "are blocked").replace("is not", "are not")
            text = text.replace("its main thread is", "their main threads are")
        texts.append(f"{capital(ranks_text(members))} {text}.")
    left = len(texts) - LISTED
    return texts if left <= 0 else [*texts[:LISTED], f"{left} more ranks of these: see the table."]


def reasons(job: Job) -> list[str]:
    """Says why dumps were written, as far as the ranks were told."""
    groups: dict[str, list[int]] = {}
    for rank in job.ranks:
        if job.dumps[rank].text:
            groups.setdefault(job.dumps[rank].text, []).append(rank)
    return [
        f"{capital(ranks_text(ranks))} wrote the dump because: {_cut(text.strip())}"
        for text, ranks in list(groups.items())[:3]
    ]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
