"""From dumps to findings: which rank diverged first and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from horovod.runner.flight_recorder import evidence
from horovod.runner.flight_recorder.dump import Dump
from horovod.runner.flight_recorder.findings import (
    EXTRA,
    FAILED,
    IDLE,
    JOIN,
    NO_FILE,
    NOTHING_SUBMITTED,
    SHORT,
    Finding,
)
from horovod.runner.flight_recorder.job import Job, Wait
from horovod.runner.flight_recorder.mismatch import failures, mismatches
from horovod.runner.flight_recorder.progress import absent_only, no_divergence
from horovod.runner.flight_recorder.waiting import judge
from horovod.runner.flight_recorder.words import (
    capital,
    count,
    quoted,
    ranks_text,
    verb,
)

# What can also be said of ranks that only had not come so far yet.
_BEHIND = (IDLE, SHORT, NOTHING_SUBMITTED, EXTRA, JOIN)
MOST = 5  # findings; those after the first are mostly consequences of it


def analyse(
    dumps: Mapping[int, Dump], unreadable: Mapping[int, str] | None = None
) -> list[Finding]:
    """Returns what went wrong, the first divergence first; one finding of kind "none" if nothing did.

    Args:
        dumps: by rank, of one job, at least one.
        unreadable: by rank, why its dump could not be read.
    """
    job = Job(dumps)
    unreadable = unreadable or {}
    found = mismatches(job)
    gone = _absent(job, unreadable)
    found += [] if gone is None else [gone]
    found += _explain(job, gone is not None)
    # A join that waits is no divergence as long as something else is one.
    found = [finding for finding in found if finding.kind != JOIN] or found
    if not found:
        found = failures(job)
    if not found:
        found = [no_divergence(job)]
        if job.absent:
            sentences = (*found[0].sentences, absent_only(job))
            found = [replace(found[0], sentences=sentences)]
    found.sort(key=lambda finding: (finding.kind in (JOIN, FAILED), finding.when))
    head, *rest = found
    head = replace(head, evidence=(*head.evidence, *evidence.reasons(job)))
    return [head, *rest][:MOST]


def _absent(job: Job, unreadable: Mapping[int, str]) -> Finding | None:
    """Ranks that others wait for and that have no dump."""
    waits = [wait for wait in job.waits if wait.absent and not wait.is_join]
    if not waits:
        return None
    first = waits[0]
    ranks = tuple(sorted({rank for wait in waits for rank in wait.absent}))
    hosts = next(iter(job.dumps.values())).hosts
    places = ", ".join(dict.fromkeys(hosts[rank] for rank in ranks[:8]))
    damaged = [rank for rank in ranks if rank in unreadable]
    lost = [rank for rank in ranks if rank not in unreadable]
    sentences = []
    if lost:
        sentences.append(
            f"{capital(ranks_text(lost))} ({places}) {verb(lost, 'has', 'have')} no file, and "
            f"{ranks_text(first.has)} {verb(first.has, 'waits', 'wait')} for {quoted(first.name)}: "
            f"{verb(lost, 'it', 'they')} died before a dump could be written, or "
            f"{verb(lost, 'its file was', 'their files were')} not copied here."
        )
        sentences.append(
            "Look at the last lines of output there, and at the kernel's log for a process that was killed "
            "for memory."
        )
    if damaged:
        sentences.append(
            f"The {verb(damaged, 'file', 'files')} of {ranks_text(damaged)} cannot be read, so whether "
            f"{verb(damaged, 'it', 'they')} submitted {quoted(first.name)} is not known."
        )
    return Finding(
        NO_FILE,
        ranks,
        tuple(sentences),
        (
            *evidence.last_common(job, first.instance.process_set),
            evidence.submission(job, first),
            (
                f"{capital(count(len(waits), 'operation'))} lack{'s' if len(waits) == 1 else ''} only "
                "or also "
                f"{ranks_text(ranks)}."
            ),
        ),
        first.when,
    )


def _explain(job: Job, somebody_is_gone: bool) -> list[Finding]:
    """Returns findings until each operation that lacks a rank with a dump is explained by one."""
    left = [wait for wait in job.waits if wait.lacks]
    found: list[Finding] = []
    while left and len(found) < MOST:
        finding = judge(job, left[0], left)
        # When a rank died, the others were interrupted where they were: some had not come so far yet.
        if not (somebody_is_gone and finding.kind in _BEHIND):
            found.append(finding)
        left = [wait for wait in left[1:] if not _explained(wait, finding, left[0])]
    return found


def _explained(wait: Wait, finding: Finding, first: Wait) -> bool:
    named = set(finding.ranks)
    if not named:
        return {*wait.has, *wait.lacks} <= {*first.has, *first.lacks}
    return set(wait.lacks) <= named or set(wait.has) <= named


def ranks_named(findings: Sequence[Finding]) -> tuple[int, ...]:
    """Returns the ranks that the findings are about, ascending."""
    return tuple(sorted({rank for finding in findings for rank in finding.ranks}))
