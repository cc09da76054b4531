"""Gradients summed over several backward passes, for the backends torch and JAX.

TensorFlow has `LocalGradientAggregationHelperEager`. The sums are variables of the optimizer, because JAX's
trainer carries all state in the optimizer's variables; they are not saved with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod._keras.flavour import Flavour


class Window:
    """The sums of the passes since the last update.

    Args:
        flavour: the Keras.
        passes: how many make one update.
        average: divide the sum by `passes`.
    """

    def __init__(self, flavour: Flavour, passes: int, average: bool) -> None:
        self.passes = passes
        self._average = average
        self._keras = flavour.keras
        self._is_jax = flavour.backend == "jax"
        self._counter: Any = None
        self._sums: dict[int, Any] = {}
        self._seen: set[int] = set()  # which variables had a gradient since the last update
        if flavour.backend == "torch":
            import torch

            # What it does depends on the counter's value: torch.compile would only warn of it.
            self.add = torch.compiler.disable(self.add)  # type: ignore[method-assign]

    @property
    def counter(self) -> Any:
        """Passes since the last update, an integer variable of Keras; None until the optimizer is built."""
        return self._counter

    @property
    def variables(self) -> list[Any]:
        """The counter and the sums."""
        return [] if self._counter is None else [self._counter, *self._sums.values()]

    def build(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Makes the counter and a sum for each variable, as variables of the optimizer."""
        if self._counter is not None:
            return
        self._counter = optimizer.add_variable(
            shape=(), dtype="int32", initializer="zeros", name="aggregation_counter"
        )
        for variable in variables:
            self._sums[id(variable)] = optimizer.add_variable_from_reference(
                variable, name="aggregated_gradient"
            )

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], Any]:
        """Adds the gradients of a pass.

        Returns:
            The sums (None for None), and whether this pass completes an update: a bool, or a traced
            boolean inside `jax.jit`.
        """
        ops = self._keras.ops
        begins = self._known(ops.equal(self._counter, 0))
        if begins is True:
            self._seen.clear()
        totals: list[Any] = []
        for gradient, variable in zip(gradients, variables, strict=True):
            total = self._sums[id(variable)]
            if gradient is None:
                # Another pass of this update may have had one (torch).
                totals.append(total.value if id(variable) in self._seen else None)
                continue
            # An update starts from the gradient: multiplying an old infinity by zero would not.
            fresh = begins if not isinstance(begins, bool) else id(variable) not in self._seen
            gradient = ops.cast(gradient, total.dtype)
            if isinstance(fresh, bool):
                summed = gradient if fresh else ops.add(total, gradient)
            else:
                summed = ops.where(fresh, gradient, ops.add(total, gradient))
            total.assign(summed)
            totals.append(summed)
            self._seen.add(id(variable))
        self._counter.assign(ops.mod(ops.add(self._counter, 1), self.passes))
        return totals, self._known(ops.equal(self._counter, 0))

    def averaged(self, totals: Sequence[Any]) -> list[Any]:
        """Returns reduced sums as they are applied."""
        if not self._average:
            return list(totals)
        divide = self._keras.ops.divide
        return [None if total is None else divide(total, self.passes) for total in totals]

    def branch(self, completes: Any, update: Callable[[], Any], skip: Callable[[], Any]) -> Any:
        """Returns what one of two functions without side effects returns."""
        if isinstance(completes, bool):
            return update() if completes else skip()
        return self._keras.ops.cond(completes, update, skip)

    def _known(self, value: Any) -> Any:
        """Returns a boolean tensor as a bool, unless `jax.jit` is tracing."""
        if self._is_jax:
            import jax

            if isinstance(value, jax.core.Tracer):
                return value
        return bool(value)
