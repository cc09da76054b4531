"""The callbacks, without their base class: each door adds its Keras's `Callback`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from horovod._keras.basics import size
from horovod._keras.flavour import Flavour, innermost
from horovod._keras.state import (
    bring_up_to_date,
    broadcast_variables,
    optimizer_variables,
    without,
)
from horovod.numpy.ops import allreduce


class _OfFlavour:
    """What Keras's `Callback` brings: `model` and `params`; and which Keras it is."""

    _flavour: ClassVar[Flavour]
    model: Any
    params: Any


class BroadcastGlobalVariablesCallback(_OfFlavour):
    """Gives all ranks the root's variables, once, at the end of the first batch.

    Not before it, because an optimizer makes some of its variables when it is first used.

    Args:
        root_rank: global rank whose values all ranks get.
        device: accepted for old callers.
        local_variables: variables that each rank keeps.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__()
        del device
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local_variables = list(local_variables or ())

    def register_local_var(self, var: Any) -> None:
        """Keeps this variable as it is on each rank."""
        self._local_variables.append(var)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts, if it is the first batch of all."""
        del batch, logs
        if self.broadcast_done:
            return
        model = self.model
        if not getattr(model, "built", True) or not model.weights:
            raise ValueError(
                "BroadcastGlobalVariablesCallback found a model without variables after the first batch; "
                "build the model (call it on a batch) before fit()."
            )
        bring_up_to_date(model)
        variables = [*model.weights, *optimizer_variables(getattr(model, "optimizer", None))]
        broadcast_variables(
            self._flavour, without(variables, self._local_variables), self.root_rank
        )
        self.broadcast_done = True


class MetricAverageCallback(_OfFlavour):
    """Replaces metrics at the end of an epoch by their averages over the ranks.

    It must come before callbacks that use metrics: ReduceLROnPlateau, TensorBoard, ModelCheckpoint.

    Args:
        device: accepted for old callers.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        del device

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages the numbers in `logs`, in the order of their names."""
        del epoch
        if not logs or size() == 1:
            return
        values = {name: _as_array(self._flavour, logs[name]) for name in sorted(logs)}
        numbers = {name: value for name, value in values.items() if value is not None}
        if not numbers:
            return
        together = np.concatenate([value.ravel() for value in numbers.values()])
        # The names make part of the operation's: ranks with other metrics would average other things.
        averages = allreduce(together, name=f"metrics.{'.'.join(numbers)}")
        begin = 0
        for name, value in numbers.items():
            part = averages[begin : begin + value.size]
            begin += value.size
            logs[name] = float(part[0]) if value.ndim == 0 else part.reshape(value.shape)


def _as_array(flavour: Flavour, value: Any) -> np.ndarray | None:
    """Returns a number or tensor as an array of float64, None for anything else."""
    if isinstance(value, (str, bytes, Mapping, type(None))):
        return None
    array = flavour.to_numpy(value)
    is_number = array.dtype.kind in "fiub" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if is_number else None


class LearningRateScheduleCallback(_OfFlavour):
    """Sets the learning rate to `initial_lr * multiplier(epoch)` from one epoch to another.

    Args:
        initial_lr: the learning rate to multiply.
        multiplier: a function of the epoch; or a number, for exponential decay:
            `multiplier ** (epoch - start_epoch)`.
        start_epoch: the first epoch that is adjusted.
        end_epoch: the first that is not any more; None: all are.
        staircase: adjust at the beginnings of epochs; otherwise before every batch, with fractional epochs.
        momentum_correction: when the learning rate changes, change the momentum's past by the same factor.
        steps_per_epoch: batches per epoch, for `staircase=False`; found out if None.

    Raises:
        ValueError: no `initial_lr`, or the number of batches per epoch cannot be found out.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError(
                f"{type(self).__name__} needs initial_lr, the learning rate to multiply; it is None."
            )
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch: int = 0
        self._restore_momentum: Any = None
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            factor = multiplier
            self.multiplier = lambda epoch: factor ** (epoch - start_epoch)

    def on_train_begin(self, logs: Any = None) -> None:
        """Finds out how many batches an epoch has, if it matters."""
        del logs
        if self.staircase or self.steps_per_epoch:
            return
        params = self.params or {}
        self.steps_per_epoch = params.get("steps")
        if not self.steps_per_epoch and params.get("samples") and params.get("batch_size"):
            # What Keras 2 says in graphs of TensorFlow 1.
            self.steps_per_epoch = math.ceil(params["samples"] / params["batch_size"])
        if not self.steps_per_epoch:
            raise ValueError(
                f"{type(self).__name__} could not find out the number of batches per epoch; give it "
                "steps_per_epoch=."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch."""
        del logs
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the learning rate, if it is time to."""
        del logs
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)  # type: ignore[operator]
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Sets the momentum back."""
        del batch, logs
        if self._restore_momentum is not None:
            self._restore_momentum()
            self._restore_momentum = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the learning rate to the logs, as `lr`."""
        del epoch
        if logs is not None:
            bring_up_to_date(self.model)
            logs["lr"] = self._learning_rate()

    def _learning_rate(self) -> float:
        return float(self._flavour.to_numpy(self.model.optimizer.learning_rate))

    def _adjust(self, epoch: float) -> None:
        bring_up_to_date(self.model)
        before = self._learning_rate()
        after = self.initial_lr * self.multiplier(epoch)
        self.model.optimizer.learning_rate = after
        if self.momentum_correction and before > 0 and after != before:
            self._restore_momentum = _correct_momentum(
                self._flavour, innermost(self.model.optimizer), after / before
            )


def _correct_momentum(flavour: Flavour, optimizer: Any, factor: float) -> Callable[[], None] | None:
    """Multiplies the momentum by a factor for one batch.

    What momentum remembers is made of steps of the old learning rate; see "Accurate, Large Minibatch SGD",
    section 2.1. Where momentum is a variable, it is changed and set back. Where it is a number, compiled code
    has it as a constant, so what it is multiplied with is scaled instead, which does the same.

    Returns:
        What sets the momentum back; None if there is nothing to do.
    """
    momentum = getattr(optimizer, "momentum", None)
    if momentum is None:
        return None
    if hasattr(momentum, "assign"):
        before = float(flavour.to_numpy(momentum))
        momentum.assign(before * factor)

        def restore() -> None:
            momentum.assign(before)

        return restore
    past = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None)
    for variable in past or ():
        if variable is not None:
            variable.assign(variable * factor)
    return None


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr` over the first epochs.

    With e the epoch, fractional, at the end of a batch, and w the epochs of warm-up, the learning rate is
    `initial_lr / size * (e * (size - 1) / w + 1)`: "Accurate, Large Minibatch SGD", section 2.2.

    Args:
        initial_lr: the learning rate after the warm-up, that of one rank multiplied by `size()`.
        warmup_epochs: how many epochs it takes.
        momentum_correction: as of `LearningRateScheduleCallback`.
        steps_per_epoch: batches per epoch; found out if None.
        verbose: 1: say when it is done.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # At the end of the batch, so that the last one of the warm-up has the full learning rate.
            epoch += 1.0 / self.steps_per_epoch  # type: ignore[operator]
            return 1.0 / size() * (epoch * (size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the learning rate to the logs, and says when the warm-up is done."""
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and self.end_epoch is not None and epoch == self.end_epoch - 1:
            print(
                f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._learning_rate():g}."
            )


class BestModelCheckpoint(_OfFlavour):
    """`ModelCheckpoint` that keeps the best model; whoever uses it sets its `filepath`."""

    def __init__(self, save_weights_only: bool, **options: Any) -> None:
        # Keras 3 looks at the end of the path, and there is no path yet.
        placeholder = "best.weights.h5" if save_weights_only else "best.keras"
        options |= {"save_best_only": True, "save_weights_only": save_weights_only}
        super().__init__(filepath=placeholder, **options)  # type: ignore[call-arg]
        self.filepath: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Raises ValueError if there is no path."""
        if self.filepath is None:
            raise ValueError(
                "BestModelCheckpoint does not know where to save: set its attribute filepath before fit()."
            )
        super().on_train_begin(logs)  # type: ignore[misc]
