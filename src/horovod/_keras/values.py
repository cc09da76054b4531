"""Collectives of the Keras doors: evaluated at once, on numbers, arrays, tensors and variables.

Results are eager tensors on TensorFlow and torch, and NumPy arrays on JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from horovod._keras.flavour import Flavour
from horovod.common.compression import Compressor
from horovod.common.dtypes import Average, ReduceOp
from horovod.numpy import ops as numpy_ops


def allreduce(
    flavour: Flavour,
    value: Any,
    name: str | None,
    average: bool | None,
    prescale_factor: float,
    postscale_factor: float,
    op: ReduceOp | None,
    compression: type[Compressor],
) -> Any:
    """Reduces a value over all ranks; see the doors."""

    def call(ops: Any, tensor: Any) -> Any:
        return ops.allreduce(
            tensor,
            average=average,
            name=name,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )

    return _evaluate(flavour, value, call)


def allgather(flavour: Flavour, value: Any, name: str | None) -> Any:
    """Concatenates the values of all ranks; see the doors."""
    return _evaluate(flavour, value, lambda ops, tensor: ops.allgather(tensor, name=name))


def broadcast(flavour: Flavour, value: Any, root_rank: int, name: str | None) -> Any:
    """Returns the root's value; see the doors."""
    return _evaluate(
        flavour, value, lambda ops, tensor: ops.broadcast(tensor, root_rank, name=name)
    )


def reducescatter(flavour: Flavour, value: Any, name: str | None, op: ReduceOp = Average) -> Any:
    """Reduces a value and returns this rank's rows; see the doors."""
    return _evaluate(
        flavour, value, lambda ops, tensor: ops.reducescatter(tensor, name=name, op=op)
    )


def broadcast_global_variables(flavour: Flavour, root_rank: int) -> Any:
    """Returns the op of a graph of TensorFlow 1 that overwrites all variables with the root's.

    Raises:
        RuntimeError: there is no such graph.
    """
    if flavour.backend != "tensorflow":
        raise RuntimeError(
            f"{flavour.door}.broadcast_global_variables() needs a graph of TensorFlow 1, and "
            f"{flavour.title} has none. Use callbacks.BroadcastGlobalVariablesCallback(0)."
        )
    from horovod.tensorflow.functions import (
        broadcast_global_variables as broadcast_variables_of_graph,
    )

    return broadcast_variables_of_graph(root_rank)


def _evaluate(flavour: Flavour, value: Any, call: Callable[[Any, Any], Any]) -> Any:
    """Calls a collective of the door that knows this kind of value, and evaluates its result."""
    if flavour.backend == "tensorflow":
        return _evaluate_tensorflow(flavour, value, call)
    if flavour.backend == "torch":
        from horovod.torch import ops as torch_ops

        return call(torch_ops, flavour.keras.ops.convert_to_tensor(value).detach())
    return call(numpy_ops, np.asarray(flavour.to_numpy(value)))


def _evaluate_tensorflow(flavour: Flavour, value: Any, call: Callable[[Any, Any], Any]) -> Any:
    import tensorflow as tf

    from horovod.tensorflow import ops

    result = call(ops, tf.convert_to_tensor(value))
    return result if tf.executing_eagerly() else flavour.keras.backend.get_value(result)


def default_compression(flavour: Flavour) -> Any:
    """Returns the class `Compression` of the backend's door."""
    if flavour.backend == "tensorflow":
        from horovod.tensorflow.compression import Compression as OfTensorFlow

        return OfTensorFlow
    if flavour.backend == "torch":
        from horovod.torch.compression import Compression as OfTorch

        return OfTorch
    from horovod.numpy.compression import Compression as OfNumpy

    return OfNumpy
