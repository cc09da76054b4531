"""The functions of `horovod.tensorflow.keras`, with the arguments of Horovod 0.28.1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from horovod._keras import load, values
from horovod._keras.flavour import Flavour
from horovod._keras.optimizer import wrap
from horovod._keras.options import Options, resolve_groups
from horovod.common.compression import Compressor
from horovod.common.dtypes import Average, ReduceOp
from horovod.common.process_sets import ProcessSet, global_process_set

flavour = Flavour("horovod.tensorflow.keras", "tf.keras", tf.keras)
Compression = values.default_compression(flavour)


def DistributedOptimizer(  # noqa: N802 - the public name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns an optimizer that works with the gradients of all ranks.

    It is a new one with the configuration of the given one: of a subclass of its class, with the same name.

    Args:
        optimizer: an optimizer of Keras, also a LossScaleOptimizer.
        name: prefix of the operations' names.
        device_dense: device for the ops on dense gradients.
        device_sparse: device for the ops on IndexedSlices.
        compression: what is done to a gradient before the wire, and undone after it.
        sparse_as_dense: make gradients dense that are IndexedSlices.
        gradient_predivide_factor: f: divide by f before the sum and by size/f after it.
        op: Average or Sum.
        backward_passes_per_step: sum gradients of so many passes before they are reduced and applied.
        average_aggregated_gradients: divide that sum by `backward_passes_per_step`.
        num_groups: old form of `groups`.
        groups: a number of nearly equal groups of gradients, or lists of variables; each group is
            reduced as one operation.
        process_set: the ranks that take part; others update locally.
        scale_local_gradients: divide the gradients of local variables by the size of the set.

    Raises:
        ValueError: it is no optimizer of this Keras or distributed already, or an argument is wrong.
    """
    options = Options(
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=resolve_groups(num_groups, groups, stacklevel=3),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return wrap(flavour, optimizer, options)


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the op of a graph of TensorFlow 1 that overwrites all variables with the root's.

    Raises:
        RuntimeError: there is no such graph.
    """
    return values.broadcast_global_variables(flavour, root_rank)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Reduces a value over all ranks, at once.

    Args:
        value: a number, array, tensor or variable; shape and dtype equal on all ranks.
        name: equal on all ranks for the same operation.
        average: old form of `op`: True for Average, False for Sum.
        prescale_factor: multiplies before the reduction.
        postscale_factor: multiplies after the reduction.
        op: Average (default), Sum, Min, Max or Product.
        compression: what is done to the value before the wire, and undone after it.

    Returns:
        An eager tensor; in a graph of TensorFlow 1 a NumPy array.
    """
    return values.allreduce(
        flavour, value, name, average, prescale_factor, postscale_factor, op, compression
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenates the values of all ranks along the first dimension, at once.

    Args:
        value: an array, tensor or variable; the first dimension may differ between ranks.
        name: equal on all ranks for the same operation.

    Returns:
        An eager tensor; in a graph of TensorFlow 1 a NumPy array.
    """
    return values.allgather(flavour, value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the value of the root on every rank, at once.

    Args:
        value: a number, array, tensor or variable; shape and dtype equal on all ranks.
        root_rank: the rank that sends.
        name: equal on all ranks for the same operation.

    Returns:
        An eager tensor; in a graph of TensorFlow 1 a NumPy array.
    """
    return values.broadcast(flavour, value, root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: ReduceOp = Average) -> Any:
    """Reduces a value over all ranks and returns this rank's share of its rows, at once.

    Args:
        value: an array, tensor or variable; shape and dtype equal on all ranks.
        name: equal on all ranks for the same operation.
        op: Average or Sum.

    Returns:
        An eager tensor; in a graph of TensorFlow 1 a NumPy array.
    """
    return values.reducescatter(flavour, value, name, op)


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model and makes its optimizer distributed, with the state it was saved with.

    Args:
        filepath: as of `tf.keras.models.load_model`.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as of `tf.keras.models.load_model`; these win over `custom_optimizers`.
        compression: what is done to a gradient before the wire, and undone after it.
        legacy_opts: accepted for old callers: an optimizer is of the class that it was saved with.
    """
    return load.load_model(
        flavour, filepath, custom_optimizers, custom_objects, compression, legacy_opts
    )
