"""Collectives on NumPy arrays. Argument order is that of horovod.torch.

Inputs are arrays or whatever NumPy makes one of. Arrays that are not C-contiguous are copied; the
in-place forms write their results back into the view. Supported dtypes: docs/dtypes.md; bfloat16
through the package ml_dtypes. Every function raises `ValueError` for wrong arguments, on this rank
alone, and `HorovodInternalError` when ranks disagree or the job was aborted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from horovod.common import collectives
from horovod.common.basics import HorovodBasics
from horovod.common.collectives import Output, barrier, poll, resolve_op, synchronize
from horovod.common.compression import Compressor
from horovod.common.dtypes import Adasum, Average, Collective, Max, Min, Product, ReduceOp, Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.numpy.compression import Compression
from horovod.numpy.tensors import (
    Array,
    as_array,
    describe,
    describe_all,
    from_output,
    gathered,
    like,
    writable_target,
    write_back,
)

_basics = HorovodBasics()

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
metrics = _basics.metrics
dump_flight_recorder = _basics.dump_flight_recorder
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "barrier",
    "join",
    "poll",
    "synchronize",
]


def join(device: int = -1) -> int:
    """Blocks until every rank has joined; meanwhile takes part in allreduces of others with zeros.

    Returns:
        The global rank that joined last, equal on all ranks. `device` is ignored.
    """
    del device
    return collectives.join()


# --- allreduce ---------------------------------------------------------------------------------


def _allreduce(
    arrays: Sequence[Array],
    targets: Sequence[Array] | None,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    grouped: bool,
    urgent: bool,
) -> int:
    """Submits; the handle yields the reduced arrays, or `targets` after they were written to."""
    inputs = describe_all(arrays, name, process_set)
    results = arrays if targets is not None else [like(array) for array in arrays]
    outputs = inputs if targets is not None else [describe(result) for result in results]

    def finish(_: list[Output]) -> Any:
        answer = results
        if targets is not None:
            write_back(targets, results)
            answer = targets
        return list(answer) if grouped else answer[0]

    return collectives.submit(
        Collective.ALLREDUCE,
        inputs,
        outputs,
        name=name,
        grouped=grouped,
        op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        urgent=urgent,
        finish=finish,
        keep_alive=arrays,
    )


def allreduce(
    tensor: ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduces an array over the ranks of a set.

    Args:
        tensor: shape and dtype equal on all ranks; scalars are legal.
        average: old form of `op`: True for Average, False for Sum.
        name: equal on all ranks for the same operation; generated from the order of calls if None.
        compression: what is done to the array before the wire, and undone after it.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after the reduction.
        process_set: the ranks that take part.

    Returns:
        A new array of the same shape and dtype.
    """
    compressed, context = compression.compress(tensor)
    resolved = resolve_op(average, op, name, process_set)
    handle = _allreduce(
        [as_array(compressed)],
        None,
        name,
        resolved,
        prescale_factor,
        postscale_factor,
        process_set,
        False,
        True,
    )
    result: Array = compression.decompress(synchronize(handle), context)
    return result


def allreduce_async(
    tensor: ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `allreduce`, without waiting: `synchronize(handle)` returns the new array.

    The input must not be changed before.
    """
    return _allreduce(
        [as_array(tensor)],
        None,
        name,
        resolve_op(average, op, name, process_set),
        prescale_factor,
        postscale_factor,
        process_set,
        False,
        False,
    )


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Like `allreduce`, in place. Returns the same array object."""
    resolved = resolve_op(average, op, name, process_set)
    handle = _allreduce(
        [as_array(writable_target(tensor))],
        [tensor],
        name,
        resolved,
        prescale_factor,
        postscale_factor,
        process_set,
        False,
        True,
    )
    result: Array = synchronize(handle)
    return result


def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `allreduce_`, without waiting; the array has its new values after `synchronize`."""
    return _allreduce(
        [as_array(writable_target(tensor))],
        [tensor],
        name,
        resolve_op(average, op, name, process_set),
        prescale_factor,
        postscale_factor,
        process_set,
        False,
        False,
    )


def grouped_allreduce(
    tensors: Sequence[ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Reduces several arrays as one operation: they become ready together.

    Arguments as those of `allreduce`; returns new arrays in the order of the inputs.
    """
    pairs = [compression.compress(tensor) for tensor in tensors]
    resolved = resolve_op(average, op, name, process_set)
    handle = _allreduce(
        [as_array(compressed) for compressed, _ in pairs],
        None,
        name,
        resolved,
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        True,
    )
    results = synchronize(handle)
    return [compression.decompress(r, c) for r, (_, c) in zip(results, pairs, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `grouped_allreduce`, without waiting: `synchronize(handle)` returns the list."""
    return _allreduce(
        [as_array(tensor) for tensor in tensors],
        None,
        name,
        resolve_op(average, op, name, process_set),
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        False,
    )


def grouped_allreduce_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Like `grouped_allreduce`, in place. Returns the same array objects."""
    resolved = resolve_op(average, op, name, process_set)
    handle = _allreduce(
        [as_array(writable_target(tensor)) for tensor in tensors],
        tensors,
        name,
        resolved,
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        True,
    )
    results: list[Array] = synchronize(handle)
    return results


def grouped_allreduce_async_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `grouped_allreduce_`, without waiting."""
    return _allreduce(
        [as_array(writable_target(tensor)) for tensor in tensors],
        tensors,
        name,
        resolve_op(average, op, name, process_set),
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        False,
    )


# --- allgather ---------------------------------------------------------------------------------


def _allgather(
    arrays: Sequence[Array],
    name: str | None,
    process_set: ProcessSet,
    grouped: bool,
    urgent: bool,
) -> int:
    to_arrays = gathered(arrays)
    return collectives.submit(
        Collective.ALLGATHER,
        describe_all(arrays, name, process_set),
        None,
        name=name,
        grouped=grouped,
        process_set=process_set,
        urgent=urgent,
        finish=to_arrays if grouped else lambda outputs: to_arrays(outputs)[0],
        keep_alive=arrays,
    )


def allgather(
    tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Concatenates the arrays of all ranks along their first dimension, in the order of ranks.

    Args:
        tensor: at least one dimension; the first may differ between ranks and may be zero.
        name: equal on all ranks for the same operation; generated from the order of calls if None.
        process_set: the ranks that take part.

    Returns:
        A new array; its first dimension is the sum of those of all ranks.
    """
    result: Array = synchronize(_allgather([as_array(tensor)], name, process_set, False, True))
    return result


def allgather_async(
    tensor: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Like `allgather`, without waiting: `synchronize(handle)` returns the new array."""
    return _allgather([as_array(tensor)], name, process_set, False, False)


def grouped_allgather(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Gathers several arrays as one operation; returns new arrays in the order of the inputs."""
    arrays = [as_array(tensor) for tensor in tensors]
    results: list[Array] = synchronize(_allgather(arrays, name, process_set, True, True))
    return results


def grouped_allgather_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `grouped_allgather`, without waiting: `synchronize(handle)` returns the list."""
    return _allgather([as_array(tensor) for tensor in tensors], name, process_set, True, False)


# --- broadcast ---------------------------------------------------------------------------------


def _broadcast(
    array: Array,
    target: Array | None,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    urgent: bool,
) -> int:
    (source,) = describe_all([array], name, process_set)
    result = array if target is not None else like(array)

    def finish(_: list[Output]) -> Array:
        if target is None:
            return result
        write_back([target], [result])
        return target

    return collectives.submit(
        Collective.BROADCAST,
        (source,),
        (source if target is not None else describe(result),),
        name=name,
        root_rank=root_rank,
        process_set=process_set,
        urgent=urgent,
        finish=finish,
        keep_alive=array,
    )


def broadcast(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Returns the root's array on every rank.

    Args:
        tensor: shape and dtype equal on all ranks; values are ignored on other ranks than the root.
        root_rank: global rank of the sender, also with a process set.
        name: equal on all ranks for the same operation; generated from the order of calls if None.
        process_set: the ranks that take part.

    Returns:
        A new array of the same shape and dtype.
    """
    handle = _broadcast(as_array(tensor), None, root_rank, name, process_set, True)
    result: Array = synchronize(handle)
    return result


def broadcast_async(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `broadcast`, without waiting: `synchronize(handle)` returns the new array."""
    return _broadcast(as_array(tensor), None, root_rank, name, process_set, False)


def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Like `broadcast`, in place. Returns the same array object."""
    array = as_array(writable_target(tensor))
    result: Array = synchronize(_broadcast(array, tensor, root_rank, name, process_set, True))
    return result


def broadcast_async_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `broadcast_`, without waiting; the array has its new values after `synchronize`."""
    array = as_array(writable_target(tensor))
    return _broadcast(array, tensor, root_rank, name, process_set, False)


# --- alltoall ----------------------------------------------------------------------------------


def _alltoall(
    array: Array, splits: Any, name: str | None, process_set: ProcessSet, urgent: bool
) -> int:
    rows: list[int] | None = None
    if splits is not None:
        checked = np.asarray(splits)
        is_plain_list = isinstance(splits, (list, tuple)) and checked.dtype.kind in "iu"
        is_int32 = is_plain_list or checked.dtype == np.int32
        collectives.check_splits(checked.ndim, is_int32, name, process_set)
        rows = checked.tolist()

    def finish(outputs: list[Output]) -> tuple[Array, Array]:
        received = np.array(outputs[0].received_splits or [], dtype=np.int32)
        return from_output(outputs[0], array.dtype), received

    return collectives.submit(
        Collective.ALLTOALL,
        describe_all([array], name, process_set),
        None,
        name=name,
        splits=rows,
        process_set=process_set,
        urgent=urgent,
        finish=finish,
        keep_alive=array,
    )


def alltoall(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of the first dimension to every rank and receives rows from every rank.

    Args:
        tensor: at least one dimension; dimensions after the first are equal on all ranks.
        splits: int32, one entry per rank of the set: how many rows it gets; None divides equally.
        name: equal on all ranks for the same operation; generated from the order of calls if None.
        process_set: the ranks that take part.

    Returns:
        The received rows in the order of ranks; with `splits`, a pair of them and the numbers of
        rows received from every rank (int32).
    """
    handle = _alltoall(as_array(tensor), splits, name, process_set, True)
    output, received_splits = synchronize(handle)
    return output if splits is None else (output, received_splits)


def alltoall_async(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `alltoall`, without waiting: `synchronize(handle)` always returns the pair."""
    return _alltoall(as_array(tensor), splits, name, process_set, False)


# --- reducescatter -----------------------------------------------------------------------------


def _reducescatter(
    arrays: Sequence[Array],
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    grouped: bool,
    urgent: bool,
) -> int:
    to_arrays = gathered(arrays)
    return collectives.submit(
        Collective.REDUCESCATTER,
        describe_all(arrays, name, process_set),
        None,
        name=name,
        grouped=grouped,
        op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        urgent=urgent,
        finish=to_arrays if grouped else lambda outputs: to_arrays(outputs)[0],
        keep_alive=arrays,
    )


def reducescatter(
    tensor: ArrayLike,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduces an array over the ranks of a set and leaves each rank its share of the rows.

    Args:
        tensor: at least one dimension; shape and dtype equal on all ranks. Of the first dimension's
            n rows, the first n % size ranks get one more than the others.
        name: equal on all ranks for the same operation; generated from the order of calls if None.
        compression: what is done to the array before the wire, and undone after it.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after the reduction.

    Returns:
        A new array with this rank's rows, possibly none.

    Raises:
        RuntimeError: another operator than Average and Sum.
    """
    compressed, context = compression.compress(tensor)
    handle = _reducescatter(
        [as_array(compressed)],
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        False,
        True,
    )
    result: Array = compression.decompress(synchronize(handle), context)
    return result


def reducescatter_async(
    tensor: ArrayLike,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like `reducescatter`, without waiting: `synchronize(handle)` returns the new array."""
    arrays = [as_array(tensor)]
    return _reducescatter(
        arrays, name, op, process_set, prescale_factor, postscale_factor, False, False
    )


def grouped_reducescatter(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Reduces and scatters several arrays as one operation; arguments as `reducescatter`."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    handle = _reducescatter(
        [as_array(compressed) for compressed, _ in pairs],
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        True,
        True,
    )
    results = synchronize(handle)
    return [compression.decompress(r, c) for r, (_, c) in zip(results, pairs, strict=True)]


def grouped_reducescatter_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like `grouped_reducescatter`, without waiting: `synchronize(handle)` returns the list."""
    arrays = [as_array(tensor) for tensor in tensors]
    return _reducescatter(
        arrays, name, op, process_set, prescale_factor, postscale_factor, True, False
    )
