"""Distributed optimizers of Keras 3: gradients are reduced where `apply` or `stateless_apply` gets them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from horovod._keras.distribution import Distribution, trained_variables
from horovod._keras.optimizer_base import CallableList, Distributed, Scaled


class _AppliesPairs:
    _hvd: Distribution

    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Reduces gradients, applies them, and returns the number of steps so far.

        Args:
            grads_and_vars: pairs of gradient and variable.
            args: as of Keras.
            kwargs: as of Keras, and those of Keras 2: `experimental_aggregate_gradients=False` and
                `skip_gradients_aggregation=True` say that the gradients are reduced already.
        """
        plain_apply = super().apply_gradients  # type: ignore[misc]
        kwargs.pop("name", None)
        are_reduced = kwargs.pop("skip_gradients_aggregation", False)
        if not kwargs.pop("experimental_aggregate_gradients", True) or are_reduced:
            with self._hvd.update():
                return plain_apply(list(grads_and_vars), *args, **kwargs)
        return plain_apply(list(grads_and_vars), *args, **kwargs)


class DistributedKeras3(_AppliesPairs, Distributed):
    """Put in front of the class of an optimizer of Keras 3."""

    @property
    def iterations(self) -> Any:
        """Passes so far; while an update is applied, updates so far.

        Adam's correction and moving averages count updates: several passes that make one update give
        what one pass with the whole batch does.
        """
        distribution = self.__dict__.get("_hvd")
        if distribution is None or not distribution.updating or distribution.passes == 1:
            return super().iterations  # type: ignore[misc]
        divide = distribution.flavour.keras.ops.floor_divide
        return divide(super().iterations, distribution.passes)  # type: ignore[misc]

    @property
    def variables(self) -> CallableList:
        """The optimizer's variables, as a list that may be called."""
        found = super().variables
        distribution = self.__dict__.get("_hvd")
        if distribution is None or distribution.window is None or not distribution.saving:
            return found
        window = {id(variable) for variable in distribution.window.variables}
        return CallableList(variable for variable in found if id(variable) not in window)

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the optimizer's variables."""
        super().build(variables)  # type: ignore[misc]
        if self._hvd.window is not None:
            self._hvd.window.build(self, variables)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """Reduces gradients over the ranks and applies them.

        Args:
            grads: of this rank, one for each variable, None where there is none.
            trainable_variables: their variables; those that the optimizer was built with if None.
        """
        plain_apply = self._hvd_plain_apply
        grads = list(grads)
        if self._hvd.updating or not grads:
            return plain_apply(grads, trainable_variables)
        variables = build_for(self, grads, trainable_variables)
        if variables is None:
            return plain_apply(grads, trainable_variables)  # which says what is wrong
        return self._hvd.apply(
            self, grads, variables, lambda reduced: plain_apply(reduced, trainable_variables)
        )

    def _hvd_plain_apply(self, grads: list[Any], trainable_variables: Sequence[Any] | None) -> Any:
        """Has Keras apply reduced gradients. `stateless_apply` of Keras comes here too."""
        result = super().apply(grads, trainable_variables)  # type: ignore[misc]
        if self._hvd.check is not None:
            self._hvd.updated(self, trainable_variables or trained_variables(self))
        return result

    def stateless_apply(
        self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any
    ) -> tuple[Any, Any]:
        """Reduces gradients over the ranks and returns the values after the update.

        Args:
            optimizer_variables: values of `variables`.
            grads: of this rank, one for each trainable variable.
            trainable_variables: their values.
        """
        plain_apply = super().stateless_apply  # type: ignore[misc]
        if self._hvd.updating or not self.built:  # type: ignore[attr-defined]
            result: tuple[Any, Any] = plain_apply(optimizer_variables, grads, trainable_variables)
            return result
        return self._hvd.stateless_apply(
            self, self, plain_apply, optimizer_variables, list(grads), trainable_variables
        )

    def save_own_variables(self, store: Any) -> None:
        """Saves the state, as a plain optimizer has it."""
        with self._hvd.save():
            super().save_own_variables(store)  # type: ignore[misc]

    def load_own_variables(self, store: Any) -> None:
        """Loads the state, also that of a plain optimizer."""
        with self._hvd.save():
            super().load_own_variables(store)  # type: ignore[misc]


class ScaledKeras3(_AppliesPairs, Scaled):
    """Put in front of the class of a LossScaleOptimizer of Keras 3; see loss_scale.py."""


def build_for(
    optimizer: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None
) -> list[Any] | None:
    """Builds an optimizer, unless it is, and returns the variables that gradients belong to.

    Keras does this itself where it applies gradients, but that may be inside a conditional, where no
    variables can be made.

    Returns:
        The variables; None if there is none for each gradient.
    """
    if not optimizer.built and trainable_variables is not None:
        import keras

        with keras.name_scope(optimizer.name):
            optimizer.build(list(trainable_variables))
    if trainable_variables is None:
        variables = trained_variables(optimizer) if optimizer.built else []
    else:
        variables = list(trainable_variables)
    return variables if len(variables) == len(grads) else None
