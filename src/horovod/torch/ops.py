"""The collectives of `horovod.torch`: blocking, asynchronous, in place and grouped.

All ranks of the process set call the same operation with the same name. Unnamed operations are
numbered in the order of submission, so ranks must then submit in the same order. `average=` and
`op=` follow `hvd.Average` when neither is given. Blocking, out-of-place forms are differentiable
and may be used inside `torch.compile`.

Errors of the caller raise ValueError or TypeError at the call. What ranks disagree on, and the death
of a rank, raise HorovodInternalError where the result is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from horovod.common import collectives
from horovod.common.collectives import resolve_op
from horovod.common.dtypes import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import compile as compiled
from horovod.torch import submission, untraced
from horovod.torch.autograd import (
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
)
from horovod.torch.compression import Compression, Compressor
from horovod.torch.sparse import sparse_allreduce_async

__all__ = [
    "Adasum",
    "Average",
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]

_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_wait = collectives.synchronize


def _tracks_gradient(tensor: Tensor) -> bool:
    try:
        return tensor.requires_grad and _grad_enabled()
    except AttributeError:
        return False  # no tensor: submitting it will say so


def _any_tracks_gradient(tensors: Sequence[Tensor]) -> bool:
    return any(_tracks_gradient(tensor) for tensor in tensors)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduces a tensor over all ranks and returns the result as a new tensor.

    Args:
        tensor: same shape and dtype on all ranks; any strides.
        average: deprecated; True means `op=Average`, False means `op=Sum`.
        name: pairs the calls of the ranks.
        compression: what travels on the wire, see `hvd.Compression`.
        op: `hvd.Average` (default), `Sum`, `Min`, `Max` or `Product`.
        prescale_factor: multiplied with the tensor before the reduction.
        postscale_factor: multiplied with the result.
        process_set: the ranks that take part.

    Returns:
        A tensor of the shape, dtype, device and strides of `tensor`. Its gradient is the same
        reduction of the gradients.
    """
    resolved = resolve_op(average, op, name, process_set)
    if compression is Compression.none:
        return _allreduce(tensor, name, resolved, prescale_factor, postscale_factor, process_set)
    sent, context = compression.compress(tensor)
    result = _allreduce(sent, name, resolved, prescale_factor, postscale_factor, process_set)
    return compression.decompress(result, context)


def _allreduce(
    tensor: Tensor,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Tensor:
    result: Tensor
    if _is_compiling():
        result = compiled.allreduce(tensor, name, op, prescale, postscale, process_set)
    elif _tracks_gradient(tensor):
        result = HorovodAllreduce.apply(tensor, None, name, op, prescale, postscale, process_set)
    else:
        result = _wait(
            submission.allreduce(tensor, name, op, prescale, postscale, process_set, urgent=True)
        )
    return result


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `allreduce`, returns a handle at once; `synchronize(handle)` gives the new tensor."""
    if _is_compiling():
        return untraced.allreduce_async(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set
        )
    resolved = resolve_op(average, op, name, process_set)
    return submission.allreduce(
        tensor, name, resolved, prescale_factor, postscale_factor, process_set
    )


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `allreduce_`, returns a handle at once; leave the tensor alone until it is done."""
    if _is_compiling():
        return untraced.allreduce_async_(
            tensor, average, name, op, prescale_factor, postscale_factor, process_set
        )
    resolved = resolve_op(average, op, name, process_set)
    return submission.allreduce(
        tensor, name, resolved, prescale_factor, postscale_factor, process_set, in_place=True
    )


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduces a tensor in place and returns the same object; not differentiable."""
    resolved = resolve_op(average, op, name, process_set)
    rule = (name, resolved, prescale_factor, postscale_factor, process_set)
    if _is_compiling():
        return tensor.copy_(compiled.allreduce(tensor.detach(), *rule))
    result: Tensor = _wait(submission.allreduce(tensor, *rule, in_place=True, urgent=True))
    return result


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduces several tensors as one atomic operation; see `allreduce`. Returns a list."""
    resolved = resolve_op(average, op, name, process_set)
    rule = (resolved, prescale_factor, postscale_factor, process_set)
    pairs = [compression.compress(tensor) for tensor in tensors]
    sent = [pair[0] for pair in pairs]
    results: Sequence[Tensor]
    if _is_compiling():
        results = compiled.grouped_allreduce(sent, name, *rule)
    elif _any_tracks_gradient(sent):
        results = HorovodGroupedAllreduce.apply(None, name, *rule, *sent)
    else:
        results = _wait(submission.grouped_allreduce(sent, name, *rule, urgent=True))
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, pairs, strict=True)
    ]


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `grouped_allreduce`, returns a handle; `synchronize` gives the list of new tensors."""
    if _is_compiling():
        return untraced.grouped_allreduce_async(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    resolved = resolve_op(average, op, name, process_set)
    return submission.grouped_allreduce(
        tensors, name, resolved, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `grouped_allreduce_`, returns a handle at once."""
    if _is_compiling():
        return untraced.grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    resolved = resolve_op(average, op, name, process_set)
    return submission.grouped_allreduce(
        tensors, name, resolved, prescale_factor, postscale_factor, process_set, in_place=True
    )


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduces several tensors in place as one atomic operation; returns the same objects."""
    resolved = resolve_op(average, op, name, process_set)
    rule = (name, resolved, prescale_factor, postscale_factor, process_set)
    if _is_compiling():
        results = compiled.grouped_allreduce([tensor.detach() for tensor in tensors], *rule)
        return [tensor.copy_(result) for tensor, result in zip(tensors, results, strict=True)]
    handle = submission.grouped_allreduce(tensors, *rule, in_place=True, urgent=True)
    reduced: list[Tensor] = _wait(handle)
    return reduced


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Concatenates the tensors of all ranks along the first dimension, in the order of ranks.

    The first dimension may differ between ranks and may be zero; the others must be equal. The
    gradient is the average over the ranks, cut to this rank's rows.
    """
    result: Tensor
    if _is_compiling():
        result = compiled.allgather(tensor, name, process_set)
    elif _tracks_gradient(tensor):
        result = HorovodAllgather.apply(tensor, name, process_set)
    else:
        result = _wait(submission.allgather([tensor], name, process_set, urgent=True))
    return result


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Like `allgather`, returns a handle at once."""
    if _is_compiling():
        return untraced.allgather_async(tensor, name, process_set)
    return submission.allgather([tensor], name, process_set)


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Gathers several tensors as one atomic operation; see `allgather`. Returns a list."""
    if _is_compiling():
        return compiled.grouped_allgather(tensors, name, process_set)
    if _any_tracks_gradient(tensors):
        return list(HorovodGroupedAllgather.apply(name, process_set, *tensors))
    handle = submission.allgather(tensors, name, process_set, grouped=True, urgent=True)
    results: list[Tensor] = _wait(handle)
    return results


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `grouped_allgather`, returns a handle at once."""
    if _is_compiling():
        return untraced.grouped_allgather_async(tensors, name, process_set)
    return submission.allgather(tensors, name, process_set, grouped=True)


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Returns the root's tensor on all ranks, as a new tensor.

    `root_rank` is a global rank, also with a process set. The gradient is the average over the
    ranks on the root and zero elsewhere.
    """
    result: Tensor
    if _is_compiling():
        result = compiled.broadcast(tensor, root_rank, name, process_set)
    elif _tracks_gradient(tensor):
        result = HorovodBroadcast.apply(tensor, root_rank, name, process_set)
    else:
        result = _wait(submission.broadcast(tensor, root_rank, name, process_set, urgent=True))
    return result


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `broadcast`, returns a handle at once."""
    if _is_compiling():
        return untraced.broadcast_async(tensor, root_rank, name, process_set)
    return submission.broadcast(tensor, root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `broadcast_`, returns a handle at once."""
    if _is_compiling():
        return untraced.broadcast_async_(tensor, root_rank, name, process_set)
    return submission.broadcast(tensor, root_rank, name, process_set, in_place=True)


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Overwrites a tensor with the root's values and returns the same object."""
    if _is_compiling():
        return tensor.copy_(compiled.broadcast(tensor.detach(), root_rank, name, process_set))
    handle = submission.broadcast(tensor, root_rank, name, process_set, in_place=True, urgent=True)
    result: Tensor = _wait(handle)
    return result


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Sends rows of the first dimension to every rank and returns the rows that arrived.

    Args:
        tensor: any shape with at least one dimension.
        splits: int32 vector: how many rows go to each rank; None: equal parts.
        name: pairs the calls of the ranks.
        process_set: the ranks that take part.

    Returns:
        The received rows, ordered by sending rank. When `splits` was given, a pair of them and
        `received_splits` (int32, on the device of `splits`).
    """
    if _is_compiling():
        output, received_splits = compiled.alltoall(tensor, splits, name, process_set)
    elif _tracks_gradient(tensor):
        output, received_splits = HorovodAlltoall.apply(tensor, splits, name, process_set)
    else:
        handle = submission.alltoall(tensor, splits, name, process_set, urgent=True)
        output, received_splits = _wait(handle)
    return output if splits is None else (output, received_splits)


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like `alltoall`; the handle always yields the pair (output, received_splits)."""
    if _is_compiling():
        return untraced.alltoall_async(tensor, splits, name, process_set)
    return submission.alltoall(tensor, splits, name, process_set)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduces a tensor and returns this rank's share of its rows.

    With n ranks and a remainder r = rows mod n, the first r ranks get one more row; fewer rows
    than ranks give empty results. Only `Average` and `Sum`.
    """
    rule = (op, prescale_factor, postscale_factor, process_set)
    sent, context = compression.compress(tensor)
    result: Tensor
    if _is_compiling():
        result = compiled.reducescatter(sent, name, *rule)
    elif _tracks_gradient(sent):
        result = HorovodReducescatter.apply(
            sent, name, op, process_set, prescale_factor, postscale_factor
        )
    else:
        result = _wait(submission.reducescatter([sent], name, *rule, urgent=True))
    return compression.decompress(result, context)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like `reducescatter`, returns a handle at once."""
    if _is_compiling():
        return untraced.reducescatter_async(
            tensor, name, op, process_set, prescale_factor, postscale_factor
        )
    return submission.reducescatter(
        [tensor], name, op, prescale_factor, postscale_factor, process_set
    )


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduces and scatters several tensors as one atomic operation; see `reducescatter`."""
    rule = (op, prescale_factor, postscale_factor, process_set)
    pairs = [compression.compress(tensor) for tensor in tensors]
    sent = [pair[0] for pair in pairs]
    results: Sequence[Tensor]
    if _is_compiling():
        results = compiled.grouped_reducescatter(sent, name, *rule)
    elif _any_tracks_gradient(sent):
        results = HorovodGroupedReducescatter.apply(
            name, op, process_set, prescale_factor, postscale_factor, *sent
        )
    else:
        handle = submission.reducescatter(sent, name, *rule, grouped=True, urgent=True)
        results = _wait(handle)
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, pairs, strict=True)
    ]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like `grouped_reducescatter`, returns a handle at once."""
    if _is_compiling():
        return untraced.grouped_reducescatter_async(
            tensors, name, op, process_set, prescale_factor, postscale_factor
        )
    return submission.reducescatter(
        tensors, name, op, prescale_factor, postscale_factor, process_set, grouped=True
    )


def poll(handle: int) -> bool:
    """Tells whether an asynchronous operation is done, so that `synchronize` will not wait."""
    if _is_compiling():
        return untraced.poll(handle)
    return collectives.poll(handle)


def synchronize(handle: int | Callable[[], Any]) -> Any:
    """Waits for an asynchronous operation and returns its result; None for an unknown handle.

    Raises:
        HorovodInternalError: the ranks disagreed, a rank died or Horovod was shut down.
    """
    if _is_compiling():
        return untraced.synchronize(handle)
    return _wait(handle) if not callable(handle) else handle()


def join(device: int = -1) -> int:
    """Takes part in the allreduces of others with zeros until every rank has joined.

    Args:
        device: where upstream kept its zero tensors; accepted and not needed.

    Returns:
        The rank that joined last, the same on all ranks.
    """
    if _is_compiling():
        return untraced.join(device)
    return collectives.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the process set has called it."""
    if _is_compiling():
        untraced.barrier(process_set)
    else:
        collectives.barrier(process_set)
