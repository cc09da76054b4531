"""Local gradient aggregation for eager mode and `tf.function`: sum over passes, then reduce once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.gradient_aggregation import dense_gradient, reduce_all_but_local
from horovod.tensorflow.gradient_reduction import key_of


class LocalGradientAggregationHelperEager:
    """Sums gradients in variables and reduces them at every n-th pass.

    Args:
        backward_passes_per_step: the n.
        allreduce_func: `(gradients, variables) -> reduced gradients`.
        sparse_as_dense: make IndexedSlices dense, so that they can be summed.
        average_aggregated_gradients: divide the sum by n.
        process_set: the ranks that take part.
        scale_local_gradients: divide local gradients by the size of the set.

    Attributes:
        counter: passes since the last reduction, an int32 variable.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        if backward_passes_per_step < 1:
            raise ValueError(
                f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}."
            )
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.counter = tf.Variable(0, trainable=False, dtype=tf.int32, name="aggregation_counter")
        self._allreduce = allreduce_func
        self._local: set[Any] = set()
        self._sums: dict[Any, tf.Variable] = {}
        self._seen: set[Any] = set()  # variables that have a gradient in this window

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of this variable on its rank."""
        self._local.add(key_of(var))

    def _sum_of(self, key: Any, gradient: Any) -> tf.Variable:
        if key not in self._sums:
            with tf.init_scope():
                self._sums[key] = tf.Variable(
                    tf.zeros(gradient.shape, gradient.dtype), trainable=False
                )
        return self._sums[key]

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002
        """Adds the gradients to the sums; returns reduced sums at every n-th pass, else the sums."""
        grads = [dense_gradient(gradient, self.sparse_as_dense) for gradient in grads]
        if self.backward_passes_per_step == 1:
            return self._reduce_shared(grads, vars)
        begins = tf.equal(self.counter, 0)
        # In eager mode another pass of the window may give gradients to other variables; a function is
        # traced once for them all.
        eager = tf.executing_eagerly()
        if eager and bool(begins):
            self._seen.clear()
        keys = [key_of(variable) for variable in vars]
        summed = [
            i for i, g in enumerate(grads) if g is not None or (eager and keys[i] in self._seen)
        ]
        totals = []
        for i in summed:
            total = self._sum_of(keys[i], grads[i])
            if grads[i] is not None:
                first = tf.constant(keys[i] not in self._seen) if eager else begins
                # A new window starts from the gradient itself: zero times an old infinity is no zero.
                total.assign(tf.where(first, grads[i], total + grads[i]))
                self._seen.add(keys[i])
            totals.append(total.read_value())
        self.counter.assign_add(1)
        reduced = tf.cond(
            tf.equal(self.counter, self.backward_passes_per_step),
            lambda: self._reduce(totals, [vars[i] for i in summed]),
            lambda: [tf.identity(total) for total in totals],
        )
        results: list[Any] = [None] * len(grads)
        for i, gradient in zip(summed, reduced, strict=True):
            results[i] = gradient
        return results

    def _reduce_shared(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        divisor = (
            (self.process_set.size() or 1) if self._local and self.scale_local_gradients else 1
        )
        return reduce_all_but_local(self._allreduce, gradients, variables, self._local, divisor)

    def _reduce(self, totals: list[Any], variables: list[Any]) -> list[Any]:
        reduced = self._reduce_shared(totals, variables)
        if self.average_aggregated_gradients:
            reduced = [gradient / self.backward_passes_per_step for gradient in reduced]
        return [tf.identity(gradient) for gradient in reduced]

    def apply_gradients(
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Applies at every n-th pass; at the others only the optimizer's `iterations` advance."""
        del args, kwargs
        if self.backward_passes_per_step == 1:
            return apply_grads_closure()

        def apply() -> Any:
            apply_grads_closure()
            self.counter.assign(0)
            return tf.constant(True)

        def skip() -> Any:
            optimizer.iterations.assign_add(1)
            return tf.constant(False)

        return tf.cond(tf.equal(self.counter, self.backward_passes_per_step), apply, skip)
