"""From the files of a job to the figures of its report."""

from __future__ import annotations

import math
from collections.abc import Callable

from horovod.runner.timeline.figures import Figures, Pending
from horovod.runner.timeline.intervals import Interval, union
from horovod.runner.timeline.job import Job, check_same_time
from horovod.runner.timeline.lateness import Arrivals, by_step, lateness
from horovod.runner.timeline.recording import Operation, Recording, read_recording
from horovod.runner.timeline.shares import share_of
from horovod.runner.timeline.steps import choose_steps
from horovod.runner.timeline.tensors import longest_waits
from horovod.runner.timeline.transfers import fusion_of, responses_of, size_classes


def analyse(
    job: Job,
    steps: tuple[int | None, int | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Figures:
    """Reads all files of `job`, one after the other, and works out the figures.

    `steps` are the first and the last step that count. `progress` is told after each file how many have been
    read. Raises TimelineError.
    """
    base = job.ranks[0].header.start
    reference = read_recording(job.ranks[0], base)
    chosen = choose_steps(reference, steps)
    rank = reference.header.rank
    arrivals = Arrivals(reference, chosen.typical)
    shares, notes = [], [*job.notes]
    blocked: dict[int, list[Interval]] = {}
    blocked_on: dict[str, float] = {}
    pending = _pending(reference, job.size)
    for done, files in enumerate(job.ranks):
        recording = reference if done == 0 else read_recording(files, base)
        check_same_time(
            (job.ranks[0].path, reference.begin, reference.end),
            (files.path, recording.begin, recording.end),
        )
        notes += recording.notes
        arrivals.add(recording)
        shares.append(share_of(recording, chosen))
        if recording.has_waits:
            blocked[files.rank] = union(recording.blocked)
            for name, time in recording.blocked_on.items():
                blocked_on[name] = blocked_on.get(name, 0.0) + time
        if progress is not None:
            progress(done + 1, len(job.ranks))
    members = [i for step in by_step(arrivals.operations, chosen) for i in step]
    operations = [arrivals.operations[i] for i in members]
    responses = responses_of(operations)
    return Figures(
        size=job.size,
        hosts=job.hosts,
        present=[files.rank for files in job.ranks],
        reference=rank,
        start=base,
        steps=chosen,
        shares=shares,
        lateness=lateness(arrivals, chosen, job.hosts, blocked),
        tensors=longest_waits(arrivals, members, job.hosts, blocked_on or None),
        sizes=size_classes(responses),
        fusion=fusion_of(responses, _decisions(operations) if rank == 0 else []),
        pending=pending,
        clock_error=arrivals.clock_error,
        bad_clocks=arrivals.bad_clocks,
        notes=notes,
    )


def _decisions(operations: list[Operation]) -> list[float]:
    """From when rank 0 heard of the last rank until it was agreed to execute, for each operation."""
    times = [op.negotiated - max(op.ready.values(), default=math.nan) for op in operations]
    return [max(0.0, time) for time in times if not math.isnan(time)]


def _pending(recording: Recording, size: int) -> list[Pending]:
    """What was not executed at the end; only rank 0 knows who had not submitted it."""
    found = []
    for operation in recording.unfinished:
        ready = sorted(operation.ready)
        agreed = not math.isnan(operation.negotiated) or not math.isnan(operation.execute_begin)
        knows = recording.header.rank == 0 and not agreed
        silent = [rank for rank in range(size) if rank not in ready] if knows else []
        since = recording.end - operation.announced
        found.append(Pending(operation.name, operation.kind, since, ready, silent))
    return sorted(found, key=lambda pending: -pending.since)
