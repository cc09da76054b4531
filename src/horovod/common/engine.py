"""The one engine of this process: whether it runs, who this rank is, which process sets exist."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horovod import _core
from horovod.common import bootstrap
from horovod.common.bootstrap.kind import Identity
from horovod.common.connect import Connection, bring_up
from horovod.common.dtypes import Collective
from horovod.common.exceptions import NOT_INITIALIZED_TEXT
from horovod.common.knobs import config_from_environment

UNKNOWN_SET_TEXT = "Process set does not exist or has not been registered."
FOREIGN_SET_TEXT = "Process is not part of provided process set."
DYNAMIC_SETS_TEXT = (
    "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding/removing process sets after Horovod "
    "initialization."
)
SHUTTING_DOWN_TEXT = "Horovod is shutting down."


@dataclass(slots=True)
class RegisteredSet:
    """One process set as this rank sees it."""

    ranks: list[int]  # ascending global ranks
    set_rank: int  # -1: this rank is not a member


@dataclass(slots=True)
class State:
    """What Python knows about the engine. There is one, `state`."""

    active: bool = False  # the core runs in this very process
    forked: bool = False  # this process is a fork of one whose engine ran
    dynamic_sets: bool = False
    identity: Identity | None = None
    connection: Connection | None = None
    sets: dict[int, RegisteredSet] = field(default_factory=dict)
    local_sizes: list[int] = field(default_factory=list)  # of the host of every rank
    rounds: int = 0  # inits of this process, failed ones included
    control_numbers: itertools.count[int] = field(default_factory=itertools.count)


state = State()


def start(process_sets: Sequence[Sequence[int]], env: Mapping[str, str]) -> None:
    """Brings the engine up. Collective; see `connect.bring_up` for what it raises."""
    if state.forked:
        raise inactive_error()
    config = config_from_environment(env)
    round_number = state.rounds
    state.rounds += 1
    check_affinity(config["thread_affinity"], bootstrap.identity(env).local_size)
    connection = bring_up(config, [list(ranks) for ranks in process_sets], round_number, env)
    state.connection = connection
    state.identity = connection.identity
    state.local_sizes = [member.local_size for member in connection.members]
    state.dynamic_sets = config["dynamic_process_sets"]
    state.control_numbers = itertools.count()
    state.sets = {}
    record_set(0, list(range(connection.identity.size)))
    state.active = True


def check_affinity(cores: Sequence[int], local_size: int) -> None:
    """Raises ValueError when the list of cores has none for some local rank."""
    if cores and len(cores) < local_size:
        raise ValueError(
            f"HOROVOD_THREAD_AFFINITY names {len(cores)} core(s), but there are {local_size} ranks "
            "on this host; name one for each, separated by commas."
        )


def host_ranks() -> dict[str, list[int]]:
    """Returns the global ranks of every host, by its name, in the order of hosts."""
    identity()
    connection = state.connection
    assert connection is not None
    return {connection.members[ranks[0]].host: list(ranks) for ranks in connection.hosts}


def reconnects() -> int:
    """Returns how often an attempt to connect to another rank had to be repeated."""
    return 0 if state.connection is None else state.connection.dialer.retries


def stop() -> None:
    """Shuts the engine down on all ranks; does nothing when it does not run in this process."""
    if not state.active or state.connection is None:
        return
    state.active = False
    connection, state.connection = state.connection, None
    try:
        _core.shutdown()
    finally:
        connection.close()
        state.identity = None
        state.sets = {}


def _after_fork_in_child() -> None:
    """The child must neither use nor end the parent's connections."""
    if state.active and state.connection is not None:
        state.forked = True
        state.active = False
        state.connection.close_copies()
        state.connection = None


os.register_at_fork(after_in_child=_after_fork_in_child)


def inactive_error() -> ValueError:
    """Returns the error of a call that needs the engine while it does not run here."""
    if state.forked:
        return ValueError(
            f"This process (pid {os.getpid()}) was forked after hvd.init(), and Horovod does not "
            "work in the fork. Call it in the parent, or start the process with the 'spawn' method."
        )
    return ValueError(NOT_INITIALIZED_TEXT)


def identity() -> Identity:
    """Returns who this rank is; a forked child, too, may ask.

    Raises:
        ValueError: not initialised.
    """
    if state.identity is None:
        raise inactive_error()
    return state.identity


def aborted() -> bool:
    """True when the engine still stands but the job was aborted or shut down by another rank."""
    return state.active and (not _core.is_running() or _core.abort_text() is not None)


def record_set(set_id: int, ranks: list[int]) -> RegisteredSet:
    """Notes a process set that now exists on all ranks."""
    rank = identity().rank
    registered = RegisteredSet(ranks, ranks.index(rank) if rank in ranks else -1)
    state.sets[set_id] = registered
    return registered


def registered_set(set_id: int) -> RegisteredSet:
    """Returns the set with this id.

    Raises:
        ValueError: not initialised, or there is no such set.
    """
    if not state.sets:
        raise inactive_error()
    try:
        return state.sets[set_id]
    except KeyError:
        raise ValueError(UNKNOWN_SET_TEXT) from None


def set_rank(set_id: int) -> int:
    """Returns the rank of this process within a set.

    Raises:
        ValueError: not initialised, no such set, or this process is not a member.
    """
    registered = registered_set(set_id)
    if registered.set_rank < 0:
        raise ValueError(FOREIGN_SET_TEXT)
    return registered.set_rank


def control(
    kind: Collective,
    name: str,
    *,
    process_set: int = 0,
    target_set: int = -1,
    ranks: Sequence[int] = (),
) -> int:
    """Runs an operation without tensors on all members of a set and returns its value.

    Args:
        kind: JOIN, BARRIER, ADD_PROCESS_SET or REMOVE_PROCESS_SET.
        name: equal on all ranks.
        process_set: id of the set whose members take part.
        target_set: id of the set to remove.
        ranks: members of the set to add.

    Raises:
        ValueError: the engine does not run here, or the arguments are wrong.
        HorovodInternalError: ranks disagreed, or the job was aborted.
    """
    if not state.active:
        raise inactive_error()
    handle = _core.submit(
        int(kind),
        [name],
        [],
        None,
        1,
        1.0,
        1.0,
        target_set,  # travels where a broadcast has its root
        None,
        process_set,
        "",
        -1,
        False,
        True,
        list(ranks),
    )
    return _core.wait(handle)[1]


def add_set(ranks: list[int]) -> int:
    """Registers a process set on all ranks and returns its id. Collective over all ranks.

    Raises:
        ValueError: numbers that are no ranks, or one twice.
        HorovodInternalError: ranks passed different sets.
    """
    size = identity().size
    if not ranks or ranks[0] < 0 or ranks[-1] >= size or len(set(ranks)) != len(ranks):
        raise ValueError(
            f"A process set needs distinct ranks between 0 and {size - 1}, not {ranks}."
        )
    name = f"add_process_set.{next(state.control_numbers)}"
    set_id = control(Collective.ADD_PROCESS_SET, name, ranks=ranks)
    record_set(set_id, ranks)
    return set_id


def remove_set(set_id: int) -> None:
    """Removes a process set on all ranks. Collective over all ranks."""
    registered_set(set_id)
    name = f"remove_process_set.{next(state.control_numbers)}"
    control(Collective.REMOVE_PROCESS_SET, name, target_set=set_id)
    del state.sets[set_id]


def require_dynamic_sets() -> None:
    """Raises ValueError unless process sets may be added and removed now."""
    if not state.active:
        raise inactive_error()
    if aborted():
        raise ValueError(SHUTTING_DOWN_TEXT)
    if not state.dynamic_sets:
        raise ValueError(DYNAMIC_SETS_TEXT)
