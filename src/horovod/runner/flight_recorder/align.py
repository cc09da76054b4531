"""Finds which operations of different ranks are the same one.

Ranks may submit in different orders, so operations are paired by process set, name and how often that name
came before ("occurrence"), as the engine does. Recorders overwrite old operations, each rank's at its own
place; where the beginning is lost, the number of the response, which is equal on all ranks, tells which
occurrence an operation is, and where that is missing too, the nearest number within the process set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horovod.runner.flight_recorder.dump import Dump, Operation


@dataclass
class Instance:
    """One operation of the job: what each rank that submitted it recorded of it.

    Attributes:
        process_set: id of its process set.
        name: its name.
        occurrence: how many of that name came before it. If no rank has recorded the beginning, counted
            from somewhere, the same on all ranks.
        by_rank: the operation of each rank.
    """

    process_set: int
    name: str
    occurrence: int
    by_rank: dict[int, Operation] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """True when the ranks had agreed on it, so that none was missing."""
        return any(operation.is_settled for operation in self.by_rank.values())

    @property
    def any_operation(self) -> Operation:
        """What the lowest rank recorded."""
        return self.by_rank[min(self.by_rank)]


def align(dumps: Mapping[int, Dump]) -> list[Instance]:
    """Returns all operations of the job, ordered by process set and lowest number in it."""
    by_name: dict[tuple[int, str], dict[int, list[Operation]]] = defaultdict(dict)
    for rank, dump in dumps.items():
        for operation in dump.operations:
            key = (operation.process_set, operation.name)
            by_name[key].setdefault(rank, []).append(operation)
    instances: list[Instance] = []
    for (process_set, name), sequences in by_name.items():
        complete = {rank for rank in sequences if dumps[rank].is_complete}
        offsets = _offsets(sequences, complete)
        found: dict[int, Instance] = {}
        for rank, operations in sequences.items():
            for i, operation in enumerate(operations, offsets[rank]):
                instance = found.setdefault(i, Instance(process_set, name, i))
                instance.by_rank[rank] = operation
        instances += found.values()
    return sorted(instances, key=_place)


def _place(instance: Instance) -> tuple[int, int, str]:
    first = min(operation.set_serial for operation in instance.by_rank.values())
    return instance.process_set, first, instance.name


def _offsets(sequences: Mapping[int, Sequence[Operation]], complete: set[int]) -> dict[int, int]:
    """Returns for each rank which occurrence its first operation of a name is."""
    placed = dict.fromkeys(complete, 0)
    waiting = [rank for rank in sequences if rank not in placed]
    if not placed and waiting:
        # The one that looks back furthest counts from zero.
        start = min(waiting, key=lambda rank: sequences[rank][0].set_serial)
        placed[start] = 0
        waiting.remove(start)
    known = _Known()
    for rank, offset in placed.items():
        known.add(sequences[rank], offset)
    while waiting:
        anchored = ((rank, known.by_response(sequences[rank])) for rank in waiting)
        rank, offset_found = next(
            ((rank, offset) for rank, offset in anchored if offset is not None), (waiting[0], None)
        )
        offset = known.by_serial(sequences[rank]) if offset_found is None else offset_found
        placed[rank] = offset
        known.add(sequences[rank], offset)
        waiting.remove(rank)
    lowest = min(placed.values())
    # No rank has the beginning: the count starts where the longest memory does.
    return {rank: offset - min(lowest, 0) for rank, offset in placed.items()}


class _Known:
    """Operations of one name whose occurrence is known."""

    def __init__(self) -> None:
        self._of_response: dict[int, int] = {}
        self._serials: dict[int, int] = {}  # number within the process set -> occurrence

    def add(self, operations: Sequence[Operation], offset: int) -> None:
        for i, operation in enumerate(operations, offset):
            self._serials.setdefault(operation.set_serial, i)
            if operation.response is not None:
                self._of_response[operation.response] = i

    def by_response(self, operations: Sequence[Operation]) -> int | None:
        for i, operation in enumerate(operations):
            occurrence = self._of_response.get(
                -1 if operation.response is None else operation.response
            )
            if occurrence is not None:
                return occurrence - i
        return None

    def by_serial(self, operations: Sequence[Operation]) -> int:
        """The last operation is taken for the known one with the nearest number."""
        last = operations[-1].set_serial
        nearest = min(self._serials, key=lambda serial: (abs(serial - last), serial))
        return self._serials[nearest] - (len(operations) - 1)
