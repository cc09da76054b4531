"""Loss scaling: the ranks agree on the gradients first, and then look whether they are finite.

A LossScaleOptimizer skips a step if a gradient is infinite. Around a distributed optimizer, as `compile()`
puts it with the policy mixed_float16, it would look at the gradients of this rank alone: ranks would take
different steps, or one would wait in the reduction for another that skips it. So the gradients are reduced
before the check (an infinite one on any rank makes the sum infinite on all), and the optimizer inside is
told that they are. They are reduced as they are, scaled; what scales them down is Keras, afterwards.

Keras 2 does this itself: its check comes after `aggregate_gradients` of the optimizer inside.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from horovod._keras.distribution import distribution_of
from horovod._keras.flavour import Flavour, inner_optimizer
from horovod._keras.optimizer_keras3 import build_for


def agree_before_check(flavour: Flavour) -> None:
    """Wraps methods of Keras 3's LossScaleOptimizer, once.

    They act only if the optimizer inside is distributed. The class itself is changed because `compile()`
    makes objects of it.
    """
    cls = getattr(flavour.keras.optimizers, "LossScaleOptimizer", None)
    if cls is None or hasattr(cls.apply, "_hvd_wraps"):
        return
    cls.apply = _wrapped_apply(cls.apply)
    cls.stateless_apply = _wrapped_stateless_apply(cls.stateless_apply)
    cls.save_own_variables = _without_window(cls.save_own_variables)
    cls.load_own_variables = _without_window(cls.load_own_variables)


def _wrapped_apply(original: Any) -> Any:
    @functools.wraps(original)
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        inner = inner_optimizer(self)
        distribution = distribution_of(inner)
        grads = list(grads)
        if distribution is None or distribution.updating or not grads:
            return original(self, grads, trainable_variables)
        variables = build_for(self, grads, trainable_variables)
        if variables is None:
            return original(self, grads, trainable_variables)
        return distribution.apply(
            inner, grads, variables, lambda reduced: original(self, reduced, trainable_variables)
        )

    apply._hvd_wraps = original  # type: ignore[attr-defined]
    return apply


def _wrapped_stateless_apply(original: Any) -> Any:
    @functools.wraps(original)
    def stateless_apply(
        self: Any, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any
    ) -> tuple[Any, Any]:
        inner = inner_optimizer(self)
        distribution = distribution_of(inner)
        plain_apply = functools.partial(original, self)
        if distribution is None or distribution.updating or not self.built:
            result: tuple[Any, Any] = plain_apply(optimizer_variables, grads, trainable_variables)
            return result
        return distribution.stateless_apply(
            inner, self, plain_apply, optimizer_variables, list(grads), trainable_variables
        )

    return stateless_apply


def _without_window(original: Any) -> Any:
    """Returns a method that saves or loads the state as with a plain optimizer inside."""

    @functools.wraps(original)
    def method(self: Any, store: Any) -> None:
        distribution = distribution_of(inner_optimizer(self))
        if distribution is None:
            original(self, store)
            return
        with distribution.save():
            original(self, store)

    return method
