"""Process sets: groups of ranks among which collectives can run."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from horovod.common import engine


class MPI:
    """Stands for mpi4py's module of this name in annotations; there is no MPI backend yet."""

    class Comm:
        """A communicator."""


class ProcessSet:
    """A group of ranks. It can be used once it has been registered, by `init` or `add_process_set`.

    Args:
        ranks_or_comm: global ranks, in any order. Communicators need the MPI backend.

    Attributes:
        process_set_id: number of the set, equal on all ranks; None until registered.
        ranks: ascending global ranks; None for the global set before `init`.
        mpi_comm: always None without the MPI backend.

    Raises:
        ValueError: something else than whole numbers was given, or a communicator.
    """

    def __init__(self, ranks_or_comm: Iterable[int] | MPI.Comm) -> None:
        self.process_set_id: int | None = None
        self.mpi_comm: Any = None
        self.ranks: list[int] | None = _sorted_ranks(ranks_or_comm)
        # Numbers of the unnamed operations on this set. Each set counts for itself and named ones
        # do not count, so that what only some ranks do leaves the names of the rest in step.
        self.numbers = itertools.count(1)

    def size(self) -> int | None:
        """Returns the number of ranks, None until registered.

        Raises:
            ValueError: not initialised, or the set does not exist any more.
        """
        if self.process_set_id is None:
            return None
        return len(engine.registered_set(self.process_set_id).ranks)

    def rank(self) -> int | None:
        """Returns the rank of this process within the set, None until registered.

        Raises:
            ValueError: this process is not a member; not initialised; the set does not exist.
        """
        if self.process_set_id is None:
            return None
        return engine.set_rank(self.process_set_id)

    def included(self) -> bool | None:
        """Returns whether this process is a member, None while the ranks are unknown.

        Raises:
            ValueError: not initialised.
        """
        if self.ranks is None:
            return None
        return engine.identity().rank in self.ranks

    def attach(self, set_id: int, ranks: list[int]) -> None:
        """Makes this object stand for a registered set."""
        self.process_set_id = set_id
        self.ranks = ranks
        self.numbers = itertools.count(1)

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__

    # An optimizer that is copied or pickled goes on using the same set.
    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        return self

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self is global_process_set:
            return "global_process_set"
        return _restore, (self.ranks, self.process_set_id)


def _restore(ranks: list[int], process_set_id: int | None) -> ProcessSet:
    process_set = ProcessSet(ranks)
    process_set.process_set_id = process_set_id
    return process_set


def _sorted_ranks(ranks_or_comm: Any) -> list[int]:
    if hasattr(ranks_or_comm, "Get_rank"):
        raise ValueError(
            "A process set made of an MPI communicator needs the MPI backend, which does not exist "
            "yet; pass ranks instead."
        )
    try:
        return sorted(operator.index(rank) for rank in ranks_or_comm)
    except TypeError:
        raise ValueError(
            f"A process set is made of whole numbers (ranks), not of {ranks_or_comm!r}."
        ) from None


def _make_global_set() -> ProcessSet:
    process_set = ProcessSet([])
    process_set.process_set_id = 0
    process_set.ranks = None
    return process_set


global_process_set = _make_global_set()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set. Collective: every rank calls it, members or not; blocks.

    Args:
        process_set: an unregistered set, or its ranks.

    Returns:
        The registered set: the object that was passed, or a new one.

    Raises:
        ValueError: not initialised, dynamic process sets are off, numbers that are no ranks, or a
            set of the same ranks exists.
        HorovodInternalError: ranks passed different sets, or the job was aborted.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    engine.require_dynamic_sets()
    if process_set.ranks is None or find_set(process_set.ranks) is not None:
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    process_set.attach(engine.add_set(process_set.ranks), process_set.ranks)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set. Collective: every rank calls it, members or not; blocks.

    Returns:
        True when it was removed; its `process_set_id` is then None and it may be added again.
        False for a set that is not registered and for the global set.

    Raises:
        ValueError: not initialised, or dynamic process sets are off.
        HorovodInternalError: ranks named different sets, or the job was aborted.
    """
    if process_set.process_set_id is None or process_set.process_set_id == 0:
        return False
    engine.require_dynamic_sets()
    if process_set.process_set_id not in engine.state.sets:
        return False
    engine.remove_set(process_set.process_set_id)
    process_set.process_set_id = None
    return True


def find_set(ranks: Sequence[int]) -> int | None:
    """Returns the id of the registered set of exactly these ranks, or None."""
    wanted = list(ranks)
    for set_id, registered in engine.state.sets.items():
        if registered.ranks == wanted:
            return set_id
    return None


def register_at_init(process_sets: Sequence[ProcessSet]) -> None:
    """Gives every set of `init` its id, registering those that do not exist yet. Collective.

    Raises:
        ValueError: an entry is a duplicate of another or of the global set; nothing is registered.
    """
    global_ranks = engine.registered_set(0).ranks
    global_process_set.ranks = global_ranks
    seen = [global_ranks]
    for i, process_set in enumerate(process_sets):
        if process_set.ranks in seen:
            raise ValueError(
                f"Horovod could not be initialized because process_sets entry number {i} is a "
                f"duplicate: {process_set}"
            )
        seen.append(process_set.ranks or [])
    for process_set in process_sets:
        ranks = process_set.ranks or []
        existing = find_set(ranks)
        if existing is None:
            process_set.attach(engine.add_set(ranks), ranks)
        elif process_set.process_set_id != existing:
            process_set.attach(existing, engine.registered_set(existing).ranks)
