"""The callbacks of `horovod.tensorflow.keras`."""

from __future__ import annotations

import tensorflow as tf

from horovod._keras import callbacks as _impl
from horovod.tensorflow.keras.functions import flavour


class BroadcastGlobalVariablesCallback(
    _impl.BroadcastGlobalVariablesCallback, tf.keras.callbacks.Callback
):
    """Gives all ranks the root's variables, once, at the end of the first batch.

    Args as of `horovod._keras.callbacks.BroadcastGlobalVariablesCallback`.
    """

    _flavour = flavour


class MetricAverageCallback(_impl.MetricAverageCallback, tf.keras.callbacks.Callback):
    """Replaces metrics at the end of an epoch by their averages over the ranks.

    Args as of `horovod._keras.callbacks.MetricAverageCallback`.
    """

    _flavour = flavour


class LearningRateScheduleCallback(_impl.LearningRateScheduleCallback, tf.keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)`.

    Args as of `horovod._keras.callbacks.LearningRateScheduleCallback`.
    """

    _flavour = flavour


class LearningRateWarmupCallback(_impl.LearningRateWarmupCallback, tf.keras.callbacks.Callback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr` over the first epochs.

    Args as of `horovod._keras.callbacks.LearningRateWarmupCallback`.
    """

    _flavour = flavour


class BestModelCheckpoint(_impl.BestModelCheckpoint, tf.keras.callbacks.ModelCheckpoint):
    """`ModelCheckpoint` that keeps the best model; whoever uses it sets its `filepath`.

    Args as of Keras's `ModelCheckpoint`.
    """

    _flavour = flavour

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            save_weights_only, monitor=monitor, verbose=verbose, mode=mode, save_freq=save_freq
        )


__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
