"""The collectives, as users call them. Argument order is that of Horovod 0.28.1.

Tensors may be eager or symbolic, of any dtype of docs/dtypes.md. In eager mode a call returns the result;
in a graph or a `tf.function` it returns a symbolic tensor. Errors of an op are `tf.errors`: wrong arguments
InvalidArgumentError, on this rank alone; ranks that disagree FailedPreconditionError; a dead peer or a
shut-down job UnknownError; an operator that reducescatter does not offer AbortedError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.collectives import resolve_op
from horovod.common.compression import Compressor
from horovod.common.dtypes import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import calls
from horovod.tensorflow._plugin import ops as _ops
from horovod.tensorflow.calls import set_id
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.identity import size_op

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]

Tensor = Any


def _in_groups(
    tensors: Sequence[Tensor],
    name: str | None,
    call: Callable[[list[Tensor], str | None], list[Tensor]],
) -> list[Tensor]:
    """Returns the results of `call(tensors, name)`, made once for each element type: a group has one."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    positions: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        positions.setdefault(tensor.dtype, []).append(i)
    results: list[Tensor] = [None] * len(tensors)
    for dtype, members in positions.items():
        label = f"{name}_{dtype.name}" if name and len(positions) > 1 else name
        for i, result in zip(members, call([tensors[i] for i in members], label), strict=True):
            results[i] = result
    return results


def _allreduce(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduces a dense tensor; what `allreduce` does without compression and without IndexedSlices."""
    return calls.allreduce(
        tensor,
        op,
        prescale_factor,
        postscale_factor,
        name,
        set_id(process_set),
        ignore_name_scope,
    )


def _grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: ReduceOp = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Reduces dense tensors, those of one element type as one group."""
    return _in_groups(
        tensors,
        name,
        lambda members, label: calls.grouped_allreduce(
            members,
            op,
            prescale_factor,
            postscale_factor,
            label,
            set_id(process_set),
            ignore_name_scope,
        ),
    )


def _check_sparse(op: ReduceOp, prescale_factor: float, postscale_factor: float) -> None:
    if op is not Average and op is not Sum:
        raise NotImplementedError(
            f"{op.name} is not offered for tf.IndexedSlices; use Average or Sum, or convert them "
            "with tf.convert_to_tensor (sparse_as_dense=True in optimizers and tapes)."
        )
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError(
            "prescale_factor and postscale_factor are not offered for tf.IndexedSlices; convert them "
            "with tf.convert_to_tensor (sparse_as_dense=True in optimizers and tapes)."
        )


def _sparse_allreduce(
    slices: tf.IndexedSlices,
    name: str | None,
    op: ReduceOp,
    device: str,
    compression: type[Compressor],
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> tf.IndexedSlices:
    """Gathers the slices of all ranks; the average divides their values by the number of ranks."""
    place: dict[str, Any] = {
        "process_set": set_id(process_set),
        "ignore_name_scope": ignore_name_scope,
    }
    with tf.device(device):
        sent, context = compression.compress(slices.values)
        values = calls.allgather(sent, f"{name}_values" if name else None, **place)
        values = compression.decompress(values, context)
        indices = calls.allgather(slices.indices, f"{name}_indices" if name else None, **place)
        if op is Average:
            values = values / tf.cast(size_op(set_id(process_set)), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Tensor:
    """Reduces a tensor over the ranks of a set. Differentiable.

    Args:
        tensor: a tensor or variable, shape and dtype equal on all ranks; or `tf.IndexedSlices`, whose
            values and indices are gathered instead.
        average: old form of `op`: True for Average, False for Sum.
        device_dense: device for the op on a dense tensor.
        device_sparse: device for the ops on IndexedSlices.
        compression: what is done to the tensor before the wire, and undone after it.
        op: Average (default), Sum, Min, Max or Product; for IndexedSlices Average or Sum.
        prescale_factor: multiplies before the reduction; passes through a float32.
        postscale_factor: multiplies after the reduction; passes through a float32.
        name: equal on all ranks for the same operation; from the tensor's name if None.
        process_set: the ranks that take part.
        ignore_name_scope: leave the enclosing name scope out of the operation's name.

    Returns:
        A tensor of the same shape and dtype, or IndexedSlices with the same dense shape.

    Raises:
        ValueError: `op` is no operator or given with `average`, or the set is not registered.
        NotImplementedError: IndexedSlices with another operator, or with factors.
        tf.errors.OpError: see the module.
    """
    op = resolve_op(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        _check_sparse(op, prescale_factor, postscale_factor)
        return _sparse_allreduce(
            tensor, name, op, device_sparse, compression, process_set, ignore_name_scope
        )
    with tf.device(device_dense):
        sent, context = compression.compress(tf.convert_to_tensor(tensor))
        reduced = _allreduce(
            sent, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
        )
        return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Tensor]:
    """Reduces tensors that are executed together or not at all. Differentiable.

    Args as of `allreduce`. `tensors` may be of several dtypes (each makes a group of its own) and may
    have IndexedSlices among them, which are gathered one by one. An empty list is returned as it is.
    """
    if not tensors:
        return list(tensors)
    op = resolve_op(average, op)
    sparse = [i for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    dense = [i for i in range(len(tensors)) if i not in set(sparse)]
    results: list[Tensor] = [None] * len(tensors)
    if sparse:
        _check_sparse(op, prescale_factor, postscale_factor)
    for i in sparse:
        results[i] = _sparse_allreduce(
            tensors[i],
            f"{name}_{i}" if name else None,
            op,
            device_sparse,
            compression,
            process_set,
            ignore_name_scope,
        )
    with tf.device(device_dense):
        sent = [compression.compress(tf.convert_to_tensor(tensors[i])) for i in dense]
        reduced = _grouped_allreduce(
            [tensor for tensor, _ in sent],
            name,
            op,
            prescale_factor,
            postscale_factor,
            ignore_name_scope,
            process_set,
        )
        for i, tensor, (_, context) in zip(dense, reduced, sent, strict=True):
            results[i] = compression.decompress(tensor, context)
    return results


def allgather(
    tensor: Tensor,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Concatenates the tensors of all ranks along the first dimension, in set-rank order.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others may not.
        name: equal on all ranks for the same operation; from the tensor's name if None.
        ignore_name_scope: leave the enclosing name scope out of the operation's name.
        process_set: the ranks that take part.

    Returns:
        A tensor whose first dimension is the sum of all ranks'. Differentiable.
    """
    return calls.allgather(tensor, name, set_id(process_set), ignore_name_scope)


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Gathers tensors that are executed together or not at all; see `allgather`."""
    return _in_groups(
        tensors,
        name,
        lambda members, label: calls.grouped_allgather(
            members, label, set_id(process_set), ignore_name_scope
        ),
    )


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Returns, on every rank of the set, the tensor that the root has. Differentiable.

    Args:
        tensor: shape and dtype equal on all ranks; ignored on other ranks than the root.
        root_rank: global rank of the sender, a member of the set.
        name: equal on all ranks for the same operation; from the tensor's name if None.
        ignore_name_scope: leave the enclosing name scope out of the operation's name.
        process_set: the ranks that take part.
    """
    return calls.broadcast(tensor, root_rank, name, set_id(process_set), ignore_name_scope)


def broadcast_(
    variables: Sequence[tf.Variable],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Overwrites variables with the values that they have on the root.

    The received tensor becomes the variable's memory: TensorFlow takes over a buffer that nobody else
    holds instead of copying it.

    Args:
        variables: all of the same kind, resource or reference; a single variable is a list of one.
        root_rank: global rank of the sender.
        name: prefix of the operations' names; the variables' positions follow.
        process_set: the ranks that take part.

    Returns:
        The variables' new values, in the same order.

    Raises:
        ValueError: a mixture of resource and reference variables, or something else.
    """
    if isinstance(variables, tf.Variable):
        variables = [variables]
    kinds = {_is_resource(variable) for variable in variables}
    if len(kinds) > 1:
        raise ValueError(
            "broadcast_ got resource variables and reference variables in one call; make one call for "
            "each kind."
        )
    results = []
    for i, variable in enumerate(variables):
        # By position: the variables' own names may differ between ranks.
        value = broadcast(
            variable, root_rank, f"{name or 'HorovodBroadcastInplace'}_{i}", process_set=process_set
        )
        assignment = variable.assign(value, read_value=False)
        with tf.control_dependencies([] if tf.executing_eagerly() else [assignment]):
            results.append(tf.identity(variable.read_value()))
    return results


def _is_resource(variable: Any) -> bool:
    if not isinstance(variable, tf.Variable):
        raise ValueError(f"broadcast_ needs variables, not a {type(variable).__name__}.")
    return bool(getattr(variable, "handle", None) is not None)


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """Sends rows of a tensor to every rank of the set. Differentiable.

    Args:
        tensor: at least one dimension; dimensions but the first equal on all ranks.
        splits: int32 vector: how many rows go to each rank; equal parts if None.
        name: equal on all ranks for the same operation; from the tensor's name if None.
        ignore_name_scope: leave the enclosing name scope out of the operation's name.
        process_set: the ranks that take part.

    Returns:
        The rows received, in set-rank order; with `splits` given also how many came from each rank, an
        int32 vector.
    """
    output, received = calls.alltoall(tensor, splits, name, set_id(process_set), ignore_name_scope)
    return output if splits is None else (output, received)


def _reducescatter(
    tensor: Tensor,
    name: str | None = None,
    op: ReduceOp = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduces and scatters a dense tensor without compression."""
    return calls.reducescatter(
        tensor,
        op,
        prescale_factor,
        postscale_factor,
        name,
        set_id(process_set),
        ignore_name_scope,
    )


def _grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: ReduceOp = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduces and scatters dense tensors, those of one element type as one group."""
    return _in_groups(
        tensors,
        name,
        lambda members, label: calls.grouped_reducescatter(
            members,
            op,
            prescale_factor,
            postscale_factor,
            label,
            set_id(process_set),
            ignore_name_scope,
        ),
    )


def reducescatter(
    tensor: Tensor,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Reduces a tensor over the ranks of a set and returns this rank's share of its rows.

    Args:
        tensor: at least one dimension; shape and dtype equal on all ranks.
        device_dense: device for the op.
        compression: what is done to the tensor before the wire, and undone after it.
        op: Average (default) or Sum; others give AbortedError.
        name: equal on all ranks for the same operation; from the tensor's name if None.
        process_set: the ranks that take part.
        ignore_name_scope: leave the enclosing name scope out of the operation's name.
        prescale_factor: multiplies before the reduction; passes through a float32.
        postscale_factor: multiplies after the reduction; passes through a float32.

    Returns:
        The rows of this rank: the first `rows % size` ranks get one row more. Differentiable.
    """
    with tf.device(device_dense):
        sent, context = compression.compress(tf.convert_to_tensor(tensor))
        scattered = _reducescatter(
            sent,
            name,
            resolve_op(None, op),
            ignore_name_scope,
            process_set,
            prescale_factor,
            postscale_factor,
        )
        return compression.decompress(scattered, context)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Reduces and scatters tensors that are executed together or not at all; see `reducescatter`."""
    if not tensors:
        return list(tensors)
    with tf.device(device_dense):
        sent = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
        scattered = _grouped_reducescatter(
            [tensor for tensor, _ in sent],
            op=resolve_op(None, op),
            process_set=process_set,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        return [
            compression.decompress(tensor, context)
            for tensor, (_, context) in zip(scattered, sent, strict=True)
        ]


def join() -> Tensor:
    """Says that this rank has no more data; ends when all ranks have joined.

    Meanwhile this rank takes part in the others' allreduces with zeros.

    Returns:
        The rank that joined last, an int32 scalar, equal on all ranks.
    """
    return _ops.horovod_join(blocking=bool(tf.executing_eagerly()))
