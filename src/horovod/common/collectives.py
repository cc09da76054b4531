"""What every door calls: checks, names and handles of collectives, and waiting for them.

A door turns its tensors into `HostTensor`s, calls `submit`, and gets from `synchronize` what its own
`finish` function made of the outputs. Nothing here knows a framework. The checks raise `ValueError`
at the call, on this rank alone, and leave everything else running.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from horovod import _core
from horovod.common import engine
from horovod.common.dtypes import (
    SUPPORTED,
    Adasum,
    Average,
    Collective,
    DataType,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    dtype_name,
)
from horovod.common.exceptions import SHUT_DOWN_TEXT, HorovodInternalError
from horovod.common.process_sets import ProcessSet, global_process_set

__all__ = [
    "Adasum",
    "Average",
    "Collective",
    "DataType",
    "HostTensor",
    "Max",
    "Min",
    "Output",
    "Product",
    "ReduceOp",
    "Sum",
    "barrier",
    "check_splits",
    "count_refusal",
    "join",
    "poll",
    "resolve_op",
    "submit",
    "synchronize",
]


# Contiguous host memory: pointer, type, shape. Not a named tuple, because making one takes longer than all
# else that a door does with a tensor.
HostTensor = tuple[int, DataType, tuple[int, ...]]


class Output(NamedTuple):
    """One result whose memory the core allocated."""

    buffer: Any
    shape: tuple[int, ...]
    received_splits: list[int] | None


# A submitted operation: the core's handle (None: nothing was submitted, an empty group), whether it
# is urgent, `finish`, and what must live until the core is done with its memory.
_Pending = tuple[int | None, bool, Callable[[list[Output]], Any], Any]

_handles = itertools.count(1)
_pending: dict[int, _Pending] = {}
_cut_off: set[int] = set()  # handles that were outstanding when this rank shut down

# Looking up a member of an enumeration takes longer than all checks of a submission together.
_ALLREDUCE = Collective.ALLREDUCE
_BROADCAST = Collective.BROADCAST
_ALLTOALL = Collective.ALLTOALL
_REDUCESCATTER = Collective.REDUCESCATTER

_PREFIXES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
_TITLES = ("Allreduce", "Allgather", "Broadcast", "Alltoall", "Reducescatter", "Barrier", "Join")

REDUCESCATTER_OPS_TEXT = "Reducescatter currently only supports AVERAGE and SUM."


# --- the caller's arguments --------------------------------------------------------------------


def count_refusal(name: str | None, process_set: ProcessSet | None) -> None:
    """Counts a call that is refused before `submit`, as `submit` counts those that it refuses.

    Generated names come from the number of unnamed calls; a call that fails on one rank alone must
    not put that rank out of step with the others.
    """
    if process_set is not None and not name:
        next(process_set.numbers)


def resolve_op(
    average: bool | None,
    op: ReduceOp | int | None,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    stacklevel: int = 3,
) -> ReduceOp:
    """Returns the operator that the parameters `average` (old) and `op` ask for; default Average.

    Args:
        average: True for Average, False for Sum, None when not given.
        op: one of Average, Sum, Min, Max, Product, None when not given.
        name: of the call that asks.
        process_set: of the call that asks; a refusal is counted there.
        stacklevel: frames between the user's call and this one, for the warning.

    Raises:
        ValueError: both were given, or `op` is no operator.
    """
    if op is not None:
        try:
            if average is not None:
                raise ValueError(
                    "The op parameter supersedes average. Please provide only one of them."
                )
            return _as_op(op)
        except ValueError:
            count_refusal(name, process_set)
            raise
    if average is None:
        return Average
    warnings.warn(
        "Parameter average is deprecated; use op=Average or op=Sum instead.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    return Average if average else Sum


def _as_op(op: ReduceOp | int) -> ReduceOp:
    if op.__class__ is ReduceOp:
        return op
    try:
        return ReduceOp(op)
    except ValueError:
        raise ValueError(
            f"op={op!r} is not one of Average, Sum, Adasum, Min, Max and Product."
        ) from None


def check_splits(
    dimensions: int,
    is_int32: bool,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> None:
    """Checks what a door knows of the splits of alltoall; the rest is checked by `submit`.

    Raises:
        ValueError: the splits are not one-dimensional or not 32-bit integers.
    """
    if dimensions == 1 and is_int32:
        return
    count_refusal(name, process_set)
    if dimensions != 1:
        raise ValueError("alltoall expects a 1D splits tensor")
    raise ValueError("alltoall expects splits to contain 32-bit integer elements.")


def _members(kind: Collective, process_set: ProcessSet) -> engine.RegisteredSet:
    """Returns the registered set; this rank must be in it."""
    state = engine.state
    if not state.active:
        raise engine.inactive_error()
    registered = state.sets.get(process_set.process_set_id)  # type: ignore[arg-type]
    if registered is None or (
        registered.ranks is not process_set.ranks and registered.ranks != process_set.ranks
    ):
        raise ValueError(
            f"{_TITLES[kind]}: Process set provided does not exist, or has not been registered."
        )
    if registered.set_rank < 0:
        raise ValueError(
            f"{_TITLES[kind]}: Rank {engine.identity().rank} is not a member of the provided "
            "process set."
        )
    return registered


def _check_op(
    kind: Collective, op: ReduceOp, inputs: Sequence[HostTensor], names: list[str]
) -> None:
    if op is not Average and op is not Sum:
        if kind is _REDUCESCATTER:
            raise RuntimeError(REDUCESCATTER_OPS_TEXT)
        if op is Adasum:
            raise NotImplementedError("Adasum is not available yet; use Average or Sum.")
    supported = SUPPORTED[op]
    for i, tensor in enumerate(inputs):
        if not supported[tensor[1]]:
            dtype = tensor[1]
            possible = [other.name for other in ReduceOp if SUPPORTED[other][dtype]]
            raise ValueError(
                f"{names[i]}: {op.name} is not defined for {dtype_name(dtype)} tensors. "
                f"Use {', '.join(possible)}, or cast the tensor."
            )


def _check_not_scalar(kind: Collective, inputs: Sequence[HostTensor], names: list[str]) -> None:
    for i, tensor in enumerate(inputs):
        if not tensor[2]:
            raise ValueError(
                f"Process-set rank zero tried to {kind.name} a rank-zero tensor. "
                f"({names[i]} needs a first dimension; reshape it to (1,).)"
            )


def _alltoall_splits(splits: Sequence[int] | None, rows: int, set_size: int) -> list[int]:
    if splits is None:
        if rows % set_size:
            raise ValueError(
                "splits not provided, but first dimension of tensor is not an even multiple of the "
                "number of workers."
            )
        return [rows // set_size] * set_size
    checked = list(splits)
    if len(checked) != set_size:
        raise ValueError("Number of entries in splits does not equal number of workers.")
    if min(checked) < 0:
        raise ValueError(f"alltoall expects splits that are not negative, not {checked}.")
    if sum(checked) > rows:
        raise ValueError("Sum of splits entries is greater than the first dimension of tensor.")
    return checked


def _names(kind: Collective, name: str | None, number: int, count: int | None) -> list[str]:
    """Returns the names of an operation, or of the `count` members of a group."""
    prefix = _PREFIXES[kind]
    if count is None:
        return [f"{prefix}.{name}" if name else f"{prefix}.noname.{number}"]
    base = f"grouped_{prefix}.{name}" if name else f"grouped_{prefix}.noname.{number}"
    return [f"{base}_{i}of{count}" for i in range(1, count + 1)]


# --- submitting ------------------------------------------------------------------------------------


def submit(
    kind: Collective,
    inputs: Sequence[HostTensor],
    outputs: Sequence[HostTensor] | None,
    *,
    name: str | None,
    grouped: bool = False,
    op: ReduceOp = Sum,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root_rank: int = -1,
    splits: Sequence[int] | None = None,
    process_set: ProcessSet = global_process_set,
    device: int = -1,
    urgent: bool = False,
    finish: Callable[[list[Output]], Any],
    keep_alive: Any = None,
) -> int:
    """Submits one operation, or one group of operations that are executed together.

    Args:
        kind: ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL or REDUCESCATTER.
        inputs: one tensor, or those of the group; unchanged until the operation is done.
        outputs: allreduce, broadcast: where results go, may be the inputs; otherwise None.
        name: equal on all ranks for the same operation; None makes one from the number of
            unnamed operations on this set so far, failed ones included.
        grouped: `inputs` are a group.
        op: allreduce, reducescatter: the operator; Average divides by the size of the set.
        prescale: factor applied before the reduction.
        postscale: factor applied after the reduction.
        root_rank: broadcast: the global rank that sends.
        splits: alltoall: rows for each rank of the set; None divides them equally.
        process_set: the ranks that take part.
        device: where the memory of `inputs` and `outputs` is: -1 for host memory, else a GPU.
        urgent: the caller is going to wait for it at once.
        finish: makes the user's result of the outputs that the core allocated, none where `outputs` were
            given; called once, by `synchronize`.
        keep_alive: kept until the core is done with the memory.

    Returns:
        A handle for `poll` and `synchronize`.

    Raises:
        ValueError: an argument is wrong, the name is in use, or the engine does not run.
        RuntimeError: reducescatter with another operator than Average and Sum.
        NotImplementedError: Adasum.
        HorovodInternalError: the job was aborted.
    """
    number = 0 if name else next(process_set.numbers)
    handle = next(_handles)
    registered = _members(kind, process_set)
    if grouped and not inputs:
        _pending[handle] = (None, urgent, finish, keep_alive)
        return handle
    names = _names(kind, name, number, len(inputs) if grouped else None)
    row_splits: list[int] | None = None
    if kind is _ALLREDUCE or kind is _REDUCESCATTER:
        if op.__class__ is not ReduceOp:
            op = _as_op(op)
        _check_op(kind, op, inputs, names)
        if op is Average:
            op = Sum
            postscale = postscale / len(registered.ranks)
    elif kind is _BROADCAST and root_rank not in registered.ranks:
        raise ValueError(
            f"broadcast received invalid root rank {root_rank} for provided process set"
        )
    if kind is not _ALLREDUCE and kind is not _BROADCAST:
        _check_not_scalar(kind, inputs, names)
        if kind is _ALLTOALL:
            row_splits = _alltoall_splits(splits, inputs[0][2][0], len(registered.ranks))
    core_handle = _core.submit(
        +kind,  # plain numbers: the core takes them faster than members of enumerations
        names,
        inputs,
        outputs,
        +op,
        prescale,
        postscale,
        root_rank,
        row_splits,
        process_set.process_set_id or 0,
        names[0].rpartition("_")[0] if grouped else "",
        # Every door passes host memory today, tensors of a GPU included (they are staged), so -1.
        # Ranks must agree on host or GPU, and only tensors of one device fuse: the core sees to both.
        device,
        bool(name),
        urgent,
        [],
    )
    _pending[handle] = (core_handle, urgent, finish, keep_alive)
    return handle


def join() -> int:
    """Blocks until every rank has joined; meanwhile takes part in allreduces of others with zeros.

    Returns:
        The global rank that joined last, equal on all ranks.
    """
    _members(Collective.JOIN, global_process_set)
    return engine.control(Collective.JOIN, "join.noname")


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Blocks until every rank of the set has called it.

    Raises:
        ValueError: the set does not exist, or this rank is not a member.
        HorovodInternalError: the job was aborted.
    """
    _members(Collective.BARRIER, process_set)
    engine.control(
        Collective.BARRIER, "barrier.noname", process_set=process_set.process_set_id or 0
    )


# --- waiting -----------------------------------------------------------------------------------------


def poll(handle: int) -> bool:
    """Returns True when `synchronize` would not block.

    Raises:
        ValueError: there is no such handle, or it was synchronised.
    """
    pending = _pending.get(handle)
    if pending is None:
        if handle in _cut_off:
            return True
        raise ValueError(f"There is no operation with handle {handle}; was it synchronized before?")
    if not engine.state.active:  # a forked child
        raise engine.inactive_error()
    return pending[0] is None or _core.poll(pending[0])


def synchronize(handle: int) -> Any:
    """Waits for an operation, forgets its handle and returns its result; None for unknown handles.

    Raises:
        HorovodInternalError: ranks disagreed about the operation, or the job was aborted.
    """
    pending = _pending.get(handle)
    if pending is None:
        if handle in _cut_off:
            _cut_off.discard(handle)
            raise HorovodInternalError(SHUT_DOWN_TEXT)
        return None
    core_handle, urgent, finish, _ = pending
    results: Sequence[Any] = ()
    if not engine.state.active:  # a forked child
        raise engine.inactive_error()
    if core_handle is not None:
        if not urgent:
            _core.urgent(core_handle)
        try:
            results = _core.wait(core_handle)[0]
        except (HorovodInternalError, ValueError):
            _pending.pop(handle, None)
            raise
        # After any other exception (Ctrl-C) the core still uses the memory: the handle stays.
    _pending.pop(handle, None)
    return finish([Output._make(result) for result in results])


def begin_round() -> None:
    """After init: names and handles count from the start again, alike on all ranks."""
    global _handles
    _handles = itertools.count(1)
    _pending.clear()
    _cut_off.clear()
    global_process_set.numbers = itertools.count(1)


def end_round() -> None:
    """After shutdown: lets go of outstanding tensors; their handles fail from now on."""
    _cut_off.update(_pending)
    _pending.clear()
