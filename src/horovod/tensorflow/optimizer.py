"""`DistributedOptimizer`: wraps an optimizer of TensorFlow 1, or hands one of Keras to the Keras door."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horovod.common.compression import Compressor
from horovod.common.consistency import ConsistencyCheck, make_check
from horovod.common.dtypes import Adasum, Average, ReduceOp
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._basics import rank
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.consistency import compare_after_step
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_reduction import Reduction, resolve_groups

_LegacyOptimizer: Any = tf.compat.v1.train.Optimizer


class _DistributedOptimizer(_LegacyOptimizer):
    """An optimizer of TensorFlow 1 whose `compute_gradients` returns gradients of all ranks."""

    def __init__(
        self,
        optimizer: Any,
        reduction: Reduction,
        use_locking: bool,
        backward_passes_per_step: int,
        average_aggregated_gradients: bool,
    ) -> None:
        super().__init__(name=reduction.name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        self._check = make_check(
            f"{reduction.name}_consistency", reduction.process_set, names_matter=False, first=2
        )
        self._agg_helper: LocalGradientAggregationHelper | None = None
        if backward_passes_per_step > 1:
            if tf.executing_eagerly():
                raise ValueError(
                    "backward_passes_per_step > 1 around an optimizer of tf.compat.v1 needs a graph; in "
                    "eager mode use an optimizer of Keras."
                )
            self._agg_helper = LocalGradientAggregationHelper(
                backward_passes_per_step=backward_passes_per_step,
                allreduce_func=reduction,
                sparse_as_dense=reduction.sparse_as_dense,
                average_aggregated_gradients=average_aggregated_gradients,
                rank=rank(),
                optimizer_type=type(optimizer),
                process_set=reduction.process_set,
                scale_local_gradients=reduction.scale_local_gradients,
                name=f"{reduction.name}_aggregation",
            )

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of this variable on its rank."""
        self._reduction.register_local(var)
        if self._agg_helper:
            self._agg_helper.register_local_var(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Returns pairs of gradient and variable, the gradients reduced over the ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if not pairs:
            return pairs
        gradients, variables = zip(*pairs, strict=True)
        compute = self._agg_helper.compute_gradients if self._agg_helper else self._reduction
        return list(zip(compute(gradients, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies what `compute_gradients` returned."""
        pairs = list(grads_and_vars)

        def apply() -> Any:
            applied = self._optimizer.apply_gradients(pairs, *args, **kwargs)
            return applied if self._check is None else self._compared(self._check, applied, pairs)

        if self._agg_helper is None:
            return apply()
        return self._agg_helper.apply_gradients(apply, self._optimizer, pairs, *args, **kwargs)

    def _compared(self, check: ConsistencyCheck, applied: Any, pairs: list[tuple[Any, Any]]) -> Any:
        """Has the variables of the ranks compared after the update; in a graph the returned op does both."""
        variables = [variable for _, variable in pairs if not self._reduction.is_local(variable)]
        if tf.executing_eagerly() or applied is None:
            compare_after_step(check, variables)
            return applied
        with tf.control_dependencies([applied]):
            compared = compare_after_step(check, variables)
            return applied if compared is None else tf.group(applied, compared)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the names of the wrapped optimizer's slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the variables of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def is_distributed(optimizer: Any) -> bool:
    """Tells whether an optimizer of TensorFlow or Keras was wrapped already."""
    return isinstance(optimizer, _DistributedOptimizer) or hasattr(optimizer, "_hvd_reduction")


def refuse_wrapped(optimizer: Any) -> None:
    """Raises ValueError for an optimizer that was wrapped already."""
    if is_distributed(optimizer):
        raise ValueError(
            f"This {type(optimizer).__name__} is a DistributedOptimizer already; wrap the plain optimizer, "
            "once. Its gradients would be averaged twice."
        )


def DistributedOptimizer(  # noqa: N802 - the public name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns an optimizer that works with the gradients of all ranks.

    Args:
        optimizer: one of `tf.compat.v1.train`, or of Keras.
        name: of the new optimizer and of its operations.
        use_locking: as of TensorFlow's optimizers.
        device_dense: device for the ops on dense gradients.
        device_sparse: device for the ops on IndexedSlices.
        compression: what is done to a gradient before the wire, and undone after it.
        sparse_as_dense: make gradients dense that are IndexedSlices.
        backward_passes_per_step: sum gradients of so many passes before they are reduced and applied.
        op: Average or Sum.
        gradient_predivide_factor: f: divide by f before the sum and by size/f after it.
        average_aggregated_gradients: divide that sum by `backward_passes_per_step`.
        num_groups: old form of `groups`.
        groups: a number of nearly equal groups of gradients, or lists of variables; each group is
            reduced as one operation.
        process_set: the ranks that take part; others update locally.
        scale_local_gradients: divide the gradients of local variables by the size of the set.

    Raises:
        ValueError: `optimizer` is no optimizer or wrapped already, or an argument is wrong.
        NotImplementedError: Adasum.
    """
    if op is Adasum:
        raise NotImplementedError("Adasum is not available yet; use op=Average or op=Sum.")
    refuse_wrapped(optimizer)
    groups = resolve_groups(num_groups, groups)
    if isinstance(optimizer, _LegacyOptimizer):
        reduction = Reduction(
            name=name or f"Distributed{type(optimizer).__name__}",
            op=ReduceOp(op),
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            groups=groups,
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        )
        return _DistributedOptimizer(
            optimizer,
            reduction,
            use_locking,
            backward_passes_per_step,
            average_aggregated_gradients,
        )
    wrap = _keras_wrapper(optimizer)
    return wrap(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def _keras_wrapper(optimizer: Any) -> Callable[..., Any]:
    """Returns the function of the Keras door that wraps this optimizer.

    Raises:
        ValueError: it is no optimizer.
    """
    if not (hasattr(optimizer, "apply_gradients") and hasattr(optimizer, "get_config")):
        raise ValueError(
            f"DistributedOptimizer needs an optimizer of tf.compat.v1.train or of Keras, not a "
            f"{type(optimizer).__name__}."
        )
    from horovod.tensorflow import keras

    return keras.DistributedOptimizer
