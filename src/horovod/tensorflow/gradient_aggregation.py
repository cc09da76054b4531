"""Local gradient aggregation in graphs: sum over several backward passes, then reduce once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.gradient_reduction import key_of


def apply_op_to_not_none_tensors(
    tensor_op: Callable[..., Any], tensors: Sequence[Any], *args: Any
) -> list[Any]:
    """Returns `tensor_op(tensor, *args)` for every tensor, None for None."""
    return [None if tensor is None else tensor_op(tensor, *args) for tensor in tensors]


def get_not_none_from_list(tensor_list: Sequence[Any]) -> list[Any]:
    """Returns the elements that are not None."""
    return [tensor for tensor in tensor_list if tensor is not None]


def dense_gradient(gradient: Any, sparse_as_dense: bool) -> Any:
    """Returns a gradient that can be summed up.

    Raises:
        ValueError: IndexedSlices, and `sparse_as_dense` is not set.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if not sparse_as_dense:
        raise ValueError(
            "backward_passes_per_step > 1 cannot sum up tf.IndexedSlices (the gradients of "
            "tf.gather, of embeddings); set sparse_as_dense=True."
        )
    return tf.convert_to_tensor(gradient)


def reduce_all_but_local(
    allreduce_func: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    gradients: Sequence[Any],
    variables: Sequence[Any],
    local: AbstractSet[Any],
    divisor: int,
) -> list[Any]:
    """Returns reduced gradients; those of the variables in `local` only divided by `divisor`."""
    results = [
        gradient
        if gradient is None or divisor == 1
        else gradient / tf.cast(divisor, gradient.dtype)
        for gradient in gradients
    ]
    shared = [i for i, variable in enumerate(variables) if key_of(variable) not in local]
    if shared:
        reduced = allreduce_func([gradients[i] for i in shared], [variables[i] for i in shared])
        for i, gradient in zip(shared, reduced, strict=True):
            results[i] = gradient
    return results


class LocalGradientAggregationHelper:
    """Sums gradients in variables of the graph and reduces them at every n-th pass.

    Args:
        backward_passes_per_step: the n.
        allreduce_func: `(gradients, variables) -> reduced gradients`.
        sparse_as_dense: make IndexedSlices dense, so that they can be summed.
        average_aggregated_gradients: divide the sum by n.
        rank: of this process; only for the names of variables.
        optimizer_type: accepted for old callers.
        process_set: the ranks that take part.
        scale_local_gradients: divide local gradients by the size of the set.
        name: prefix of the variables' names.

    Attributes:
        counter: the variable that counts the passes since the last reduction.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        rank: int,
        optimizer_type: Any,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        del rank, optimizer_type
        if backward_passes_per_step < 1:
            raise ValueError(
                f"backward_passes_per_step must be at least 1, not {backward_passes_per_step}."
            )
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.counter: Any = None
        self._allreduce = allreduce_func
        self._local: set[Any] = set()
        self._name = name or "LocalGradientAggregation"
        self._sums: dict[Any, Any] = {}

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of this variable on its rank."""
        self._local.add(key_of(var))

    def _variable(self, name: str, initial: Any) -> Any:
        with tf.init_scope():
            return tf.compat.v1.get_variable(
                name,
                initializer=initial,
                trainable=False,
                use_resource=True,
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            )

    def _make_variables(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        with tf.compat.v1.variable_scope(self._name, reuse=tf.compat.v1.AUTO_REUSE):
            if self.counter is None:
                self.counter = self._variable("counter", tf.zeros([], tf.int32))
            for i, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
                if gradient is not None and key_of(variable) not in self._sums:
                    self._sums[key_of(variable)] = self._variable(
                        f"gradient_{i}", tf.zeros(gradient.shape, gradient.dtype)
                    )

    def compute_gradients(self, grads: Sequence[Any], vars: Sequence[Any]) -> list[Any]:  # noqa: A002
        """Adds the gradients to the sums; returns reduced sums at every n-th pass, else the sums."""
        grads = [dense_gradient(gradient, self.sparse_as_dense) for gradient in grads]
        if self.backward_passes_per_step == 1:
            return self._reduce_shared(grads, vars)
        self._make_variables(grads, vars)
        present = [i for i, gradient in enumerate(grads) if gradient is not None]
        sums = [self._sums[key_of(vars[i])] for i in present]
        begins = tf.equal(self.counter.read_value(), 0)
        with tf.control_dependencies([begins]):
            # A new window starts from the gradient itself: multiplying an old infinity by zero would not.
            added = [
                total.assign(tf.where(begins, grads[i], total.read_value() + grads[i]))
                for i, total in zip(present, sums, strict=True)
            ]
        with tf.control_dependencies([getattr(a, "op", a) for a in added]):
            count = self.counter.assign_add(1, read_value=True)
            totals = [total.read_value() for total in sums]
            reduced = tf.cond(
                tf.equal(count, self.backward_passes_per_step),
                lambda: self._reduce(totals, [vars[i] for i in present]),
                lambda: [tf.identity(total) for total in totals],
            )
        results: list[Any] = [None] * len(grads)
        for i, gradient in zip(present, reduced, strict=True):
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
        """Returns the op that applies at every n-th pass and else only advances the step counter."""
        if self.backward_passes_per_step == 1:
            return apply_grads_closure()
        pairs = list(args[0] if args else kwargs["grads_and_vars"])
        gradients = get_not_none_from_list([gradient for gradient, _ in pairs])
        step = kwargs.get("global_step", args[1] if len(args) > 1 else None)
        # In the branches, so that slots are made outside of them.
        with tf.control_dependencies(gradients):
            full = tf.equal(self.counter.read_value(), self.backward_passes_per_step)

            def apply() -> Any:
                applied = apply_grads_closure()
                with tf.control_dependencies([] if applied is None else [applied]):
                    return tf.group(self.counter.assign(0, read_value=False))

            def skip() -> Any:
                advances = [] if step is None else [step.assign_add(1, read_value=False)]
                return tf.group(*self._skipped(optimizer), *advances)

            return tf.group(tf.cond(full, apply, skip))

    @staticmethod
    def _skipped(optimizer: Any) -> list[Any]:
        """Returns the ops that advance the counter of a Keras optimizer although nothing is applied."""
        iterations = getattr(optimizer, "iterations", None)
        return [] if iterations is None else [iterations.assign_add(1)]
