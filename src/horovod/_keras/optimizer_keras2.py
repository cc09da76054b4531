"""Distributed optimizers of Keras 2, old and new ones: gradients are reduced where they are aggregated."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from horovod._keras.optimizer_base import Distributed, Scaled

_Pairs = Iterable[tuple[Any, Any]]


def _skips(kwargs: dict[str, Any]) -> bool:
    """Tells whether the caller says that the gradients are reduced already."""
    return bool(
        kwargs.get("skip_gradients_aggregation")
        or kwargs.get("experimental_aggregate_gradients") is False
    )


class _ReducesPairs:
    _hvd: Any

    def apply_gradients(self, grads_and_vars: _Pairs, *args: Any, **kwargs: Any) -> Any:
        """Reduces gradients over the ranks and applies them.

        Args:
            grads_and_vars: pairs of gradient and variable.
            args: as of Keras.
            kwargs: as of Keras. `experimental_aggregate_gradients=False` and
                `skip_gradients_aggregation=True` say that the gradients are reduced already.

        Returns:
            What Keras returns; with several passes per update whether they have been applied.
        """
        plain_apply = super().apply_gradients  # type: ignore[misc]
        pairs = list(grads_and_vars)
        if self._hvd.updating or not pairs or _skips(kwargs):
            return self._hvd_applied(plain_apply(pairs, *args, **kwargs), pairs)
        gradients, variables = zip(*pairs, strict=True)
        optimizer = self._hvd_updates()
        if self._hvd.helper is not None:
            _build(optimizer, variables)
        known = inspect.signature(plain_apply).parameters
        if "skip_gradients_aggregation" in known:
            kwargs["skip_gradients_aggregation"] = True
        elif "experimental_aggregate_gradients" in known:
            kwargs["experimental_aggregate_gradients"] = False

        def apply(reduced: list[Any]) -> Any:
            applied = plain_apply(list(zip(reduced, variables, strict=True)), *args, **kwargs)
            return self._hvd_applied(applied, pairs)

        return self._hvd.apply(optimizer, gradients, variables, apply)

    def _hvd_updates(self) -> Any:
        """The optimizer that updates variables."""
        return self

    def _hvd_applied(self, applied: Any, pairs: list[tuple[Any, Any]]) -> Any:
        """Compares the variables of the ranks, perhaps; returns what Keras returned."""
        if self._hvd.check is None or not pairs or self._hvd_updates() is not self:
            return applied  # the optimizer inside a LossScaleOptimizer comes here by itself
        return _after(applied, self._hvd, self, [variable for _, variable in pairs])


class DistributedKeras2(_ReducesPairs, Distributed):
    """Put in front of the class of an optimizer of Keras 2."""

    def aggregate_gradients(self, grads_and_vars: _Pairs) -> list[tuple[Any, Any]]:
        """Returns the pairs with reduced gradients; a LossScaleOptimizer calls it before its check."""
        pairs = list(grads_and_vars)
        if self._hvd.updating or not pairs:
            return pairs
        if self._hvd.helper is not None:
            raise ValueError(
                "backward_passes_per_step > 1 does not work inside a LossScaleOptimizer of this Keras, which "
                "looks for infinite gradients in every pass; wrap the other way round: "
                "DistributedOptimizer(LossScaleOptimizer(optimizer), backward_passes_per_step=...)."
            )
        gradients, variables = zip(*pairs, strict=True)
        return list(zip(self._hvd.reduced(gradients, variables), variables, strict=True))

    # The name that old optimizers have for it.
    _aggregate_gradients = aggregate_gradients


class ScaledKeras2(_ReducesPairs, Scaled):
    """Put in front of the class of a LossScaleOptimizer of Keras 2."""

    def _hvd_updates(self) -> Any:
        return self.inner_optimizer  # type: ignore[attr-defined]


def _build(optimizer: Any, variables: Any) -> None:
    """Makes the optimizer's variables outside of the conditional that will be around the update."""
    import tensorflow as tf

    make = getattr(optimizer, "build", None) or optimizer._create_all_weights
    with tf.init_scope():
        make(list(variables))


def _after(applied: Any, distribution: Any, optimizer: Any, variables: list[Any]) -> Any:
    """Has the comparison made after the update; in a graph of TensorFlow 1 the returned op does both."""
    import tensorflow as tf

    if tf.compat.v1.executing_eagerly_outside_functions() or applied is None:
        distribution.updated(optimizer, variables)
        return applied
    with tf.control_dependencies([applied]):
        compared = distribution.updated(optimizer, variables)
        return applied if compared is None else tf.group(applied, compared)
