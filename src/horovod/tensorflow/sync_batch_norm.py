"""`SyncBatchNormalization`: batch normalization over the batches of all ranks."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import tensorflow as tf

from horovod.tensorflow._basics import size
from horovod.tensorflow.ops import Average, allreduce

_BatchNormalization: Any = tf.keras.layers.BatchNormalization


def _takes_fused(layer: type) -> bool:
    """Tells whether this Keras has the option: Keras 3 has not."""
    constructors = [vars(c).get("__init__") for c in layer.__mro__[:-1]]
    return any("fused" in inspect.signature(init).parameters for init in constructors if init)


class SyncBatchNormalization(_BatchNormalization):
    """Keras's BatchNormalization with mean and variance over all ranks.

    Every rank has the same weight, whatever the size of its batch: means and mean squares are averaged.

    Args:
        fused: must be False: TensorFlow's fused kernel knows nothing of other ranks.
        kwargs: as of Keras's layer.

    Raises:
        ValueError: `fused` is True or None.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError(
                "SyncBatchNormalization does not support fused=True: the fused kernel computes the "
                "moments of one rank alone. Leave the argument out."
            )
        if not hasattr(_BatchNormalization, "_moments"):
            raise NotImplementedError(
                f"BatchNormalization of this Keras ({_BatchNormalization.__module__}) has no method "
                "_moments, by which SyncBatchNormalization averages over the ranks."
            )
        if _takes_fused(_BatchNormalization):
            kwargs["fused"] = False
        kwargs.pop("synchronized", None)
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if size() == 1:
            return mean, variance
        both = tf.stack([mean, variance + tf.square(mean)])
        both = allreduce(both, op=Average, name=f"SyncBatchNormalization_{self.name}")
        return both[0], both[1] - tf.square(both[0])

    @functools.wraps(_BatchNormalization.call)  # Keras reads the names of its parameters
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Normalizes; in a graph of TensorFlow 1 its updates go to the collection UPDATE_OPS."""
        outputs = super().call(*args, **kwargs)
        if not tf.executing_eagerly() and not tf.compat.v1.executing_eagerly_outside_functions():
            for update in getattr(self, "updates", []):
                tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.UPDATE_OPS, update)
        return outputs
