"""A job as its dumps show it: operations that wait for ranks, and what each rank was doing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from horovod.runner.flight_recorder.align import Instance, align
from horovod.runner.flight_recorder.dump import Dump, Operation
from horovod.runner.flight_recorder.names import family
from horovod.runner.flight_recorder.stacks import where
from horovod.runner.flight_recorder.steps import period, step_lengths
from horovod.runner.flight_recorder.words import count, quoted, seconds


@dataclass(frozen=True)
class Wait:
    """An operation that some members of its process set have submitted and others have not.

    Attributes:
        instance: the operation.
        has: ranks that submitted it, ascending.
        lacks: ranks that have a dump and did not.
        absent: ranks without a dump, of which that cannot be known.
        when: seconds since the epoch when the first rank submitted it.
    """

    instance: Instance
    has: tuple[int, ...]
    lacks: tuple[int, ...]
    absent: tuple[int, ...]
    when: float

    @property
    def name(self) -> str:
        """The operation's name."""
        return self.instance.name

    @property
    def is_join(self) -> bool:
        """True for a join, which may wait for others as long as they have data."""
        return self.instance.any_operation.kind == "join"


class Job:
    """All dumps of a job.

    Args:
        dumps: by rank, at least one.
    """

    def __init__(self, dumps: Mapping[int, Dump]) -> None:
        self.dumps = dumps
        self.size = next(iter(dumps.values())).size
        self.ranks = tuple(sorted(dumps))
        self.absent = tuple(rank for rank in range(self.size) if rank not in dumps)
        self.instances = align(dumps)
        self.instance_of = {
            (rank, operation.serial): instance
            for instance in self.instances
            for rank, operation in instance.by_rank.items()
        }

    # --- process sets ---------------------------------------------------------------------------

    @cached_property
    def _members(self) -> dict[int, tuple[int, ...]]:
        seen: dict[int, set[int]] = {}
        told: dict[int, tuple[int, ...]] = {}
        for rank, dump in self.dumps.items():
            told |= dump.process_sets
            for operation in dump.operations:
                seen.setdefault(operation.process_set, set()).add(rank)
        found = {process_set: tuple(sorted(ranks)) for process_set, ranks in seen.items()}
        return {**found, **told, 0: tuple(range(self.size))}

    def members(self, process_set: int) -> tuple[int, ...]:
        """Returns the ranks of a set: as the dumps say, or else those that used it."""
        return self._members.get(process_set, ())

    def operations(self, rank: int, process_set: int) -> list[Operation]:
        """Returns what a rank recorded of one set, oldest first."""
        return [op for op in self.dumps[rank].operations if op.process_set == process_set]

    def submitted(self, rank: int, process_set: int) -> int:
        """Returns how many operations of a set a rank has submitted since the start."""
        operations = self.operations(rank, process_set)
        return operations[-1].set_serial + 1 if operations else 0

    def step_lengths(self, rank: int, process_set: int) -> list[int]:
        """Returns how many named operations of a set each step of a rank has."""
        return step_lengths(self.operations(rank, process_set))

    def period(self, process_set: int) -> int | None:
        """Returns how many operations of a set a step has, as most ranks show; None if none does."""
        found = [
            length
            for rank in self.ranks
            if (length := period(self.step_lengths(rank, process_set))) is not None
        ]
        return max(set(found), key=lambda length: (found.count(length), length)) if found else None

    def ended_step(self, rank: int, process_set: int, lack: int) -> bool:
        """Tells whether a rank had come to the end of a step.

        Args:
            rank: the rank.
            process_set: whose operations make the steps.
            lack: how many operations others submitted that the rank did not. Whole steps of them say yes, and
                so does the last step of the rank if its steps are known from the beginning.
        """
        length = self.period(process_set)
        if length is None:
            return False
        if lack and lack % length == 0:
            return True
        lengths = self.step_lengths(rank, process_set)
        return self.dumps[rank].is_complete and bool(lengths) and lengths[-1] >= length

    # --- waiting --------------------------------------------------------------------------------

    @cached_property
    def joined(self) -> frozenset[int]:
        """Ranks that have joined and wait for the rest, so that nobody waits for them."""
        return frozenset(
            rank
            for rank, dump in self.dumps.items()
            for operation in dump.operations
            if operation.kind == "join" and operation.finished is None and operation.state != "done"
        )

    @cached_property
    def waits(self) -> list[Wait]:
        """Operations that not all members have submitted: joins last, the others by time."""
        found = [wait for instance in self.instances if (wait := self._wait(instance))]
        return sorted(found, key=lambda wait: (wait.is_join, wait.when))

    def _wait(self, instance: Instance) -> Wait | None:
        if instance.is_settled:
            return None
        missing = [r for r in self.members(instance.process_set) if r not in instance.by_rank]
        if instance.any_operation.kind != "join":
            missing = [rank for rank in missing if rank not in self.joined]
        if not missing:
            return None
        times = [self.dumps[r].at(op.submitted) for r, op in instance.by_rank.items()]
        return Wait(
            instance,
            tuple(sorted(instance.by_rank)),
            tuple(rank for rank in missing if rank in self.dumps),
            tuple(rank for rank in missing if rank not in self.dumps),
            min(times),
        )

    # --- what a rank knows and does -------------------------------------------------------------

    @cached_property
    def _known(self) -> dict[int, set[tuple[int, str]]]:
        """What each rank has agreed on with the others before."""
        return {
            rank: {
                (operation.process_set, family(operation.name))
                for operation in dump.operations
                if operation.is_settled
            }
            for rank, dump in self.dumps.items()
        }

    def knows(self, ranks: Iterable[int], instance: Instance) -> bool:
        """Tells whether one of the ranks has done an operation of this name before."""
        key = instance.process_set, family(instance.name)
        return any(key in self._known[rank] for rank in ranks)

    def keeps_habit(self, rank: int, instance: Instance) -> bool | None:
        """Tells whether a rank submitted an operation after the same one as the time before.

        Returns:
            None if there is nothing to compare with.
        """
        names = [family(op.name) for op in self.operations(rank, instance.process_set)]
        serials = [op.serial for op in self.operations(rank, instance.process_set)]
        here = serials.index(instance.by_rank[rank].serial)
        if here == 0:
            return None
        for i in range(here - 2, -1, -1):
            if names[i] == names[here - 1]:
                return names[i + 1] == names[here]
        return None

    def is_blocked_on(self, rank: int, name: str) -> bool:
        """Tells whether a caller on the rank waits for an operation of this name."""
        return any(blocked.name == name for blocked in self.dumps[rank].blocked)

    def pending(self, rank: int) -> list[Operation]:
        """Returns the operations of a rank that were under way."""
        return [op for op in self.dumps[rank].operations if op.state not in ("done", "failed")]

    def last_common(self, process_set: int) -> Instance | None:
        """Returns the last operation of a set that the ranks have agreed on."""
        settled = [
            (min(op.set_serial for op in instance.by_rank.values()), i)
            for i, instance in enumerate(self.instances)
            if instance.process_set == process_set and instance.is_settled
        ]
        return self.instances[max(settled)[1]] if settled else None

    def describe(self, rank: int) -> str:
        """Returns in a sentence what a rank was doing; without its number."""
        dump = self.dumps[rank]
        if not dump.recorded:
            done = "has submitted nothing at all"
        elif not dump.operations:
            done = f"has submitted {count(dump.recorded, 'operation')}"
        else:
            last = dump.operations[-1]
            done = (
                f"has submitted {count(dump.recorded, 'operation')}, the last of them "
                f"{quoted(last.name)} ({last.state}) {seconds(dump.monotonic - last.submitted)} before its "
                "dump"
            )
        parts = [done]
        if dump.blocked:
            longest = min(dump.blocked, key=lambda blocked: blocked.since)
            waited = seconds(dump.monotonic - longest.since)
            parts.append(f"is blocked on {quoted(longest.name)} for {waited}")
        else:
            parts.append("is not blocked in Horovod")
        place = where(dump.stacks)
        if place:
            parts.append(f"its main thread is at {place}")
        return ", ".join(parts)
