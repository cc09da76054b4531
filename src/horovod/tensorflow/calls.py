"""From checked arguments to an op: one function per collective, on dense tensors.

These take a resolved reduction operator and the id of a process set, and know nothing of compression,
sparse gradients or devices; the public functions and the gradients of the ops all end here. Inside a
function that XLA compiles the op is a custom call (`xla.py`), elsewhere one of the plug-in's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.dtypes import ReduceOp
from horovod.common.engine import UNKNOWN_SET_TEXT
from horovod.common.process_sets import ProcessSet
from horovod.tensorflow import xla
from horovod.tensorflow._plugin import ops

Tensor = Any  # tf.Tensor; TensorFlow has no types that a checker could use


def set_id(process_set: ProcessSet) -> int:
    """Returns the id of a registered set.

    Raises:
        ValueError: the set has not been registered.
    """
    if process_set.process_set_id is None:
        raise ValueError(UNKNOWN_SET_TEXT)
    return process_set.process_set_id


def _normalized(name: str) -> str:
    """Returns a tensor's name in the form that the name of a node may have."""
    return "".join(c if c.isalnum() or c in "_-./" else "_" for c in name)


def tensor_name(tensor: Tensor) -> str | None:
    """Returns a tensor's name in the form that the name of a node may have; None if it has none."""
    try:
        return _normalized(tensor.name)
    except AttributeError:  # an eager tensor that a graph captures has no name
        return None


def graph_name(op: str, tensors: Sequence[Tensor]) -> str:
    """Returns the name of an unnamed node, made of those of its first and last input."""
    names = [tensor_name(tensor) for tensor in (tensors[0], tensors[-1])]
    if None in names:
        return op
    return f"{op}_{names[0]}" if len(tensors) == 1 else f"{op}_{names[0]}_{names[1]}"


def _naming(
    op: str, name: str | None, tensors: Sequence[Tensor], ignore_name_scope: bool
) -> dict[str, Any]:
    """Returns the arguments that name an op, and say whether its caller waits for it."""
    if tf.executing_eagerly():
        # There are no nodes in eager mode: the name travels as an attribute.
        return {"tensor_name": name or op, "blocking": True, "ignore_name_scope": ignore_name_scope}
    return {"name": name or graph_name(op, tensors), "ignore_name_scope": ignore_name_scope}


def allreduce(
    tensor: Tensor,
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> Tensor:
    """Reduces a tensor over the ranks of a set."""
    tensor = tf.convert_to_tensor(tensor)
    if xla.in_compiled_function():
        return xla.allreduce(
            [tensor], op, prescale, postscale, name, process_set, ignore_name_scope
        )[0]
    return ops.horovod_allreduce(
        tensor=tensor,
        reduce_op=int(op),
        prescale_factor=prescale,
        postscale_factor=postscale,
        process_set_id=process_set,
        **_naming("HorovodAllreduce", name, [tensor], ignore_name_scope),
    )


def grouped_allreduce(
    tensors: Sequence[Tensor],
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> list[Tensor]:
    """Reduces tensors of one element type as one group."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if xla.in_compiled_function():
        return xla.allreduce(tensors, op, prescale, postscale, name, process_set, ignore_name_scope)
    return list(
        ops.horovod_grouped_allreduce(
            tensors=tensors,
            reduce_op=int(op),
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set_id=process_set,
            **_naming("HorovodGroupedAllreduce", name, tensors, ignore_name_scope),
        )
    )


def allgather(
    tensor: Tensor, name: str | None = None, process_set: int = 0, ignore_name_scope: bool = False
) -> Tensor:
    """Concatenates the tensors of all ranks of a set along their first dimension."""
    tensor = tf.convert_to_tensor(tensor)
    if xla.in_compiled_function():
        return xla.allgather([tensor], name, process_set, ignore_name_scope)[0]
    return ops.horovod_allgather(
        tensor=tensor,
        process_set_id=process_set,
        **_naming("HorovodAllgather", name, [tensor], ignore_name_scope),
    )


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> list[Tensor]:
    """Gathers tensors of one element type as one group."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if xla.in_compiled_function():
        return xla.allgather(tensors, name, process_set, ignore_name_scope)
    return list(
        ops.horovod_grouped_allgather(
            tensors=tensors,
            process_set_id=process_set,
            **_naming("HorovodGroupedAllgather", name, tensors, ignore_name_scope),
        )
    )


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> Tensor:
    """Returns the tensor that the global rank `root_rank` has."""
    tensor = tf.convert_to_tensor(tensor)
    if xla.in_compiled_function():
        return xla.broadcast(tensor, root_rank, name, process_set, ignore_name_scope)
    return ops.horovod_broadcast(
        tensor=tensor,
        root_rank=root_rank,
        process_set_id=process_set,
        **_naming("HorovodBroadcast", name, [tensor], ignore_name_scope),
    )


def alltoall(
    tensor: Tensor,
    splits: Tensor | None = None,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> tuple[Tensor, Tensor]:
    """Sends rows to every rank of a set; returns the rows received, and how many from each."""
    tensor = tf.convert_to_tensor(tensor)
    if xla.in_compiled_function():
        return xla.alltoall(tensor, splits, name, process_set, ignore_name_scope)
    # An empty vector asks for equal parts.
    rows = tf.convert_to_tensor([] if splits is None else splits, dtype=tf.int32)
    return tuple(
        ops.horovod_alltoall(
            tensor=tensor,
            splits=rows,
            process_set_id=process_set,
            **_naming("HorovodAlltoall", name, [tensor], ignore_name_scope),
        )
    )


def reducescatter(
    tensor: Tensor,
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> Tensor:
    """Reduces a tensor and returns this rank's share of the rows."""
    tensor = tf.convert_to_tensor(tensor)
    if xla.in_compiled_function():
        return xla.reducescatter(
            [tensor], op, prescale, postscale, name, process_set, ignore_name_scope
        )[0]
    return ops.horovod_reducescatter(
        tensor=tensor,
        reduce_op=int(op),
        prescale_factor=prescale,
        postscale_factor=postscale,
        process_set_id=process_set,
        **_naming("HorovodReducescatter", name, [tensor], ignore_name_scope),
    )


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> list[Tensor]:
    """Reduces and scatters tensors of one element type as one group."""
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if xla.in_compiled_function():
        return xla.reducescatter(
            tensors, op, prescale, postscale, name, process_set, ignore_name_scope
        )
    return list(
        ops.horovod_grouped_reducescatter(
            tensors=tensors,
            reduce_op=int(op),
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set_id=process_set,
            **_naming("HorovodGroupedReducescatter", name, tensors, ignore_name_scope),
        )
    )
