"""Responses: their sizes, their bandwidth, and what was fused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from horovod.runner.timeline.figures import Fusion, SizeClass
from horovod.runner.timeline.intervals import intersect, total, union
from horovod.runner.timeline.recording import Operation

KIB = 1024
SIZE_BOUNDS = [KIB, 16 * KIB, 256 * KIB, 4 * KIB**2, 64 * KIB**2]
SIZE_LABELS = [
    "up to 1 KiB",
    "1 to 16 KiB",
    "16 to 256 KiB",
    "256 KiB to 4 MiB",
    "4 to 64 MiB",
    "over 64 MiB",
]
COUNT_BOUNDS = [1, 3, 7, 15, 31, 63]
COUNT_LABELS = ["1", "2-3", "4-7", "8-15", "16-31", "32-63", "64+"]


@dataclass
class Response:
    """What was executed together; `time` in microseconds without waiting for data."""

    kind: str
    tensors: int
    bytes: int
    time: float


def responses_of(operations: Iterable[Operation]) -> list[Response]:
    """Puts the operations of each response together; those that were never executed are left out."""
    groups: dict[int, list[Operation]] = {}
    for place, operation in enumerate(operations):
        if math.isnan(operation.execute_begin) or math.isnan(operation.execute_end):
            continue
        number = operation.response if operation.response is not None else -1 - place
        groups.setdefault(number, []).append(operation)
    return [_response(members) for members in groups.values()]


def _response(members: list[Operation]) -> Response:
    executed = union((op.execute_begin, op.execute_end) for op in members)
    waited = intersect(executed, union(wait for op in members for wait in op.data_waits))
    return Response(
        kind=members[0].kind,
        tensors=max(len(members), members[0].fused),
        bytes=sum(op.bytes for op in members),
        time=total(executed) - total(waited),
    )


def size_classes(responses: list[Response]) -> list[SizeClass]:
    """Bytes and time by kind and size, without empty classes; the kind with most bytes first."""
    cells: dict[tuple[str, int], list[Response]] = {}
    weight: dict[str, int] = {}
    for response in responses:
        place = sum(response.bytes > bound for bound in SIZE_BOUNDS)
        cells.setdefault((response.kind, place), []).append(response)
        weight[response.kind] = weight.get(response.kind, 0) + response.bytes
    return [
        SizeClass(
            kind=kind,
            label=SIZE_LABELS[place],
            responses=len(members),
            bytes=sum(r.bytes for r in members),
            time=sum(r.time for r in members),
            best=max((r.bytes / r.time * 1e6 for r in members if r.time > 0), default=0.0),
        )
        for (kind, place), members in sorted(
            cells.items(), key=lambda cell: (-weight[cell[0][0]], cell[0])
        )
    ]


def fusion_of(responses: list[Response], decisions: list[float]) -> Fusion:
    """Statistics of fusion; `decisions` are the times from complete to decided."""
    counts = [[0, 0] for _ in COUNT_LABELS]
    for response in responses:
        cell = counts[sum(response.tensors > bound for bound in COUNT_BOUNDS)]
        cell[0] += 1
        cell[1] += response.bytes
    fused = [r for r in responses if r.tensors > 1]
    return Fusion(
        responses=len(responses),
        tensors=sum(r.tensors for r in responses),
        bytes=sum(r.bytes for r in responses),
        by_count=[
            (label, cell[0], cell[1]) for label, cell in zip(COUNT_LABELS, counts, strict=True)
        ],
        fused_tensors=sum(r.tensors for r in fused),
        fused_bytes=sum(r.bytes for r in fused),
        typical_bytes=median(r.bytes for r in responses) if responses else 0.0,
        decision=median(decisions) if decisions else None,
    )
