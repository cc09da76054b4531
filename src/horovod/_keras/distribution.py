"""What makes an optimizer distributed: reduce its gradients once, then let Keras apply them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from horovod._keras.consistency import compare_after_update
from horovod._keras.flavour import Flavour
from horovod._keras.options import Options
from horovod._keras.reduction import make_reduction
from horovod._keras.window import Window
from horovod.common.consistency import make_check

_Gradients = Sequence[Any]
_StatelessApply = Callable[[Any, Any, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Wrapping:
    """What all optimizers of one distributed class have in common."""

    flavour: Flavour
    options: Options


class Distribution:
    """The state of one distributed optimizer, beside what Keras keeps.

    Args:
        wrapping: the Keras, and how gradients are reduced.
        default_name: prefix of the operations' names if the options have none.

    Attributes:
        reduction: `(gradients, variables) -> reduced gradients`.
        helper: sums gradients of several passes on TensorFlow, None without.
        window: the same on torch and JAX, None without.
        updating: the gradients on their way to the optimizer are reduced already.
        computed: `compute_gradients` has reduced those that `apply_gradients` is going to get.
        saving: the optimizer is being saved or loaded, which leaves the window out.
        check: compares the variables of the ranks; None unless it was asked for.
    """

    def __init__(self, wrapping: Wrapping, default_name: str) -> None:
        flavour, options = wrapping.flavour, wrapping.options
        self.flavour = flavour
        self.options = options
        self.reduction = make_reduction(options, flavour.backend, default_name)
        self._largest = make_reduction(
            options.for_largest(), flavour.backend, f"{options.name or default_name}_largest"
        )
        self.helper: Any = None
        self.window: Window | None = None
        self.updating = False
        self.computed = False
        self.saving = False
        # Not by names: they count layers, and differ where a model was loaded or built once more. Not after
        # the first step: the callback that broadcasts comes after it.
        self.check = make_check(
            f"{options.name or default_name}_consistency",
            options.process_set,
            names_matter=False,
            first=2,
        )
        if options.backward_passes_per_step > 1:
            if flavour.backend == "tensorflow":
                self.helper = self._tensorflow_helper()
            else:
                self.window = Window(
                    flavour, options.backward_passes_per_step, options.average_aggregated_gradients
                )

    def _tensorflow_helper(self) -> Any:
        import tensorflow as tf

        from horovod.tensorflow.gradient_aggregation_eager import (
            LocalGradientAggregationHelperEager,
        )

        options = self.options
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise ValueError(
                "backward_passes_per_step > 1 around an optimizer of Keras needs eager mode or tf.function; "
                "in graphs of TensorFlow 1 use an optimizer of tf.compat.v1.train."
            )
        return LocalGradientAggregationHelperEager(
            backward_passes_per_step=options.backward_passes_per_step,
            allreduce_func=self._reduce,
            sparse_as_dense=options.sparse_as_dense,
            average_aggregated_gradients=options.average_aggregated_gradients,
            process_set=options.process_set,
            scale_local_gradients=options.scale_local_gradients,
        )

    @property
    def passes(self) -> int:
        """The backward passes that make one update."""
        return self.options.backward_passes_per_step

    def register_local(self, variable: Any) -> None:
        """Keeps the gradient of this variable on its rank."""
        self.reduction.register_local(variable)

    @contextmanager
    def update(self) -> Iterator[None]:
        """Lets gradients through as they are, for its duration."""
        before, self.updating = self.updating, True
        try:
            yield
        finally:
            self.updating = before

    @contextmanager
    def save(self) -> Iterator[None]:
        """Leaves the window out of the optimizer's variables, so that a plain one can load them."""
        self.saving = True
        try:
            yield
        finally:
            self.saving = False

    def reduced(self, gradients: _Gradients, variables: Sequence[Any]) -> list[Any]:
        """Returns reduced gradients; with several passes per update sums, reduced at the last pass."""
        if self.computed:
            self.computed = False
            return list(gradients)
        if self.helper is not None:
            return self.helper.compute_gradients(gradients, variables)
        return self._reduce(gradients, variables)

    def _reduce(self, gradients: _Gradients, variables: Sequence[Any]) -> list[Any]:
        """Reduces gradients. Some are none: they replace their variable.

        So do the scales of float8, and the largest values that they are made of. The largest of all ranks
        suits all.
        """
        replacing = [i for i, variable in enumerate(variables) if _is_replaced(variable)]
        if not replacing:
            return self.reduction(gradients, variables)
        if self.passes > 1:
            raise ValueError(
                f"backward_passes_per_step > 1 sums gradients, and that of {variables[replacing[0]].path} "
                "is a new value of its variable (float8). Use gradient_accumulation_steps of Keras."
            )
        others = [i for i in range(len(variables)) if i not in set(replacing)]
        results = list(gradients)
        for reduction, positions in ((self.reduction, others), (self._largest, replacing)):
            reduced = reduction(
                [gradients[i] for i in positions], [variables[i] for i in positions]
            )
            for i, gradient in zip(positions, reduced, strict=True):
                results[i] = gradient
        return results

    def updated(self, optimizer: Any, variables: Sequence[Any]) -> Any:
        """Has to be called when Keras has applied reduced gradients; may compare the ranks' variables.

        Returns:
            None; in a graph of TensorFlow perhaps an op that has to be run.
        """
        if self.check is None:
            return None
        shared = [variable for variable in variables if not self.reduction.is_local(variable)]
        return compare_after_update(self.check, self.flavour.backend, optimizer, shared)

    def apply(
        self,
        optimizer: Any,
        gradients: _Gradients,
        variables: Sequence[Any],
        apply: Callable[[list[Any]], Any],
    ) -> Any:
        """Reduces the gradients of this rank and has them applied, or not before the last pass.

        Args:
            optimizer: the one that updates variables; it must be built if there are several passes.
            gradients: of this rank, one for each variable.
            variables: of Keras.
            apply: takes reduced gradients and applies them.
        """
        if self.window is not None:
            return self._apply_window(optimizer, gradients, variables, apply)
        reduced = self.reduced(gradients, variables)

        def let_keras_apply() -> Any:
            with self.update():
                return apply(reduced)

        if self.helper is not None:
            return self.helper.apply_gradients(let_keras_apply, optimizer)
        return let_keras_apply()

    def _apply_window(
        self,
        optimizer: Any,
        gradients: _Gradients,
        variables: Sequence[Any],
        apply: Callable[[list[Any]], Any],
    ) -> Any:
        assert self.window is not None
        totals, completes = self.window.add(gradients, variables)
        if not isinstance(completes, bool):
            raise NotImplementedError(
                "With backward_passes_per_step > 1, optimizer.apply() cannot be traced by jax.jit, because "
                "it decides whether to update; call optimizer.stateless_apply() there."
            )
        if not completes:
            return optimizer.iterations.assign_add(1)
        reduced = self.window.averaged(self._reduce(totals, variables))
        with self.update():
            return apply(reduced)

    def stateless_apply(
        self,
        optimizer: Any,
        outer: Any,
        apply: _StatelessApply,
        optimizer_variables: Any,
        gradients: _Gradients,
        trainable_variables: Any,
    ) -> tuple[Any, Any]:
        """The same for `stateless_apply`, by which Keras trains on JAX.

        Args:
            optimizer: the one that updates variables, built.
            outer: the one whose `stateless_apply` was called: `optimizer`, or what is around it.
            apply: Keras's own `stateless_apply` of `outer`.
            optimizer_variables: values of `outer.variables`.
            gradients: of this rank, one for each trainable variable.
            trainable_variables: their values.

        Returns:
            The new values of the trainable variables, and of `outer.variables`.
        """
        variables = trained_variables(optimizer)
        if self.window is None:
            reduced = self.reduced(gradients, variables)
            with self.update():
                return apply(optimizer_variables, reduced, trainable_variables)
        window = self.window
        mapping = list(zip(outer.variables, optimizer_variables, strict=True))
        with self.flavour.keras.StatelessScope(state_mapping=mapping) as scope:
            totals, completes = window.add(gradients, variables)
            state = [scope.get_current_value(variable) for variable in outer.variables]

        def update() -> tuple[Any, Any]:
            reduced = window.averaged(self._reduce(totals, variables))
            with self.update():
                return apply(state, reduced, trainable_variables)

        def skip() -> tuple[Any, Any]:
            with self.flavour.keras.StatelessScope(
                state_mapping=list(zip(outer.variables, state, strict=True))
            ) as scope:
                optimizer.iterations.assign_add(1)
                return trainable_variables, [
                    scope.get_current_value(variable) for variable in outer.variables
                ]

        return window.branch(completes, update, skip)


def _is_replaced(variable: Any) -> bool:
    """Tells whether Keras 3 replaces this variable by its gradient."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def trained_variables(optimizer: Any) -> list[Any]:
    """Returns the variables that an optimizer of Keras 3 was built with."""
    return list(optimizer._trainable_variables)


def distribution_of(optimizer: Any) -> Distribution | None:
    """Returns what makes this optimizer distributed, None for a plain one."""
    return getattr(optimizer, "_hvd", None)
