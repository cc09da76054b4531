"""What optimizers and tapes share: gradients of this rank in, gradients of all ranks out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from horovod.common.compression import Compressor
from horovod.common.dtypes import Average, ReduceOp, Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.tensorflow import calls, xla
from horovod.tensorflow.calls import set_id
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.ops import allreduce, grouped_allreduce

Gradient = Any  # tf.Tensor, tf.IndexedSlices or None
_DIFFERENT_TEXT = (
    "Ranks have different gradients. Each rank must have one for the same variables, and the same of "
    "them sparse; give all ranks the same model and loss (multiply by zero what a rank does not use). "
    "By variable, 0 none, 1 dense, 2 sparse; here:"
)
_GROUPS_TEXT = "groups should be a non-negative integer or a list of list of tf.Variable."


def key_of(variable: Any) -> Any:
    """Returns something hashable that stands for a variable of TensorFlow or Keras."""
    variable = getattr(variable, "value", variable) if hasattr(variable, "path") else variable
    return variable.ref() if hasattr(variable, "ref") else id(variable)


@dataclass
class Reduction:
    """How gradients are reduced; the same on all ranks.

    Args:
        name: prefix of the operations' names.
        op: Average or Sum.
        groups: a number of nearly equal groups, or lists of variables; each is one operation.
        gradient_predivide_factor: splits the division by the number of ranks into one before and one
            after the sum.
        scale_local_gradients: divide the gradients of local variables by the size of the set.
    """

    name: str
    op: ReduceOp = Average
    device_dense: str = ""
    device_sparse: str = ""
    compression: type[Compressor] = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: Any = None
    process_set: ProcessSet = field(default_factory=lambda: global_process_set)
    scale_local_gradients: bool = True
    local_variables: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.gradient_predivide_factor != 1.0 and self.op is not Average:
            raise ValueError(
                f"gradient_predivide_factor={self.gradient_predivide_factor} needs op=Average, not "
                f"{ReduceOp(self.op).name}: it splits the division of the average."
            )
        check_groups(self.groups)

    # --- local variables ---------------------------------------------------------------------

    def register_local(self, variable: Any) -> None:
        """Keeps the gradient of this variable on its rank."""
        self.local_variables.add(key_of(variable))

    def is_local(self, variable: Any) -> bool:
        """Tells whether the variable's gradient stays on its rank."""
        return bool(self.local_variables) and key_of(variable) in self.local_variables

    def _scaled_local(self, gradient: Gradient) -> Gradient:
        size = self.process_set.size() or 1
        if gradient is None or not self.scale_local_gradients or size == 1:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(size, gradient.dtype)

    # --- reduction -----------------------------------------------------------------------------

    def is_needed(self) -> bool:
        """Tells whether there is anybody to reduce with."""
        if not self.process_set.included():
            return False
        return (self.process_set.size() or 1) > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"

    def __call__(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient]:
        """Returns the gradients, reduced over the ranks; local ones scaled; None stays None.

        Args:
            gradients: one for each variable, of its shape.
            variables: TensorFlow's or Keras's; which gradients are None is the same on all ranks.

        Raises:
            tf.errors.InvalidArgumentError: a gradient is None on some ranks only, or sparse on some.
        """
        results = list(gradients)
        local = [self.is_local(variable) for variable in variables]
        for i, gradient in enumerate(results):
            if local[i]:
                results[i] = self._scaled_local(gradient)
        if not self.is_needed():
            return results
        with tf.name_scope(f"{self.name}_Allreduce"):
            mine = [i for i in range(len(results)) if not local[i]]
            # XLA compiles for fixed shapes, and how many rows sparse gradients have is the batch's affair.
            if self.sparse_as_dense or xla.in_compiled_function():
                for i in mine:
                    if isinstance(results[i], tf.IndexedSlices):
                        results[i] = tf.convert_to_tensor(results[i])
            with tf.control_dependencies(self._agreement([results[i] for i in mine])):
                self._reduce(results, [i for i in mine if results[i] is not None], variables)
        return results

    def _agreement(self, gradients: list[Gradient]) -> list[Any]:
        """Returns the ops that fail unless all ranks have the same kinds of gradients.

        Without them a rank that has a gradient which others lack would wait for ever. Nothing waits
        for them in practice: they need no gradient, so they are done before the first one is there.
        """
        if xla.in_compiled_function():
            return []
        kinds = [
            0 if gradient is None else 2 if isinstance(gradient, tf.IndexedSlices) else 1
            for gradient in gradients
        ]
        both = tf.constant([kinds, [-kind for kind in kinds]], dtype=tf.int32)
        highest = calls.allreduce(
            both, ReduceOp.Max, name=f"{self.name}_kinds", process_set=set_id(self.process_set)
        )
        check = tf.debugging.Assert(
            tf.reduce_all(tf.equal(highest[0], -highest[1])),
            [
                _DIFFERENT_TEXT,
                tf.constant(kinds, tf.int32),
                "highest of all ranks:",
                highest[0],
                "lowest:",
                -highest[1],
            ],
            summarize=100,
        )
        return [] if check is None else [check]

    def _factors(self) -> dict[str, Any]:
        factor = self.gradient_predivide_factor
        if factor == 1.0:
            return {"op": self.op}
        size = self.process_set.size() or 1
        return {"op": Sum, "prescale_factor": 1.0 / factor, "postscale_factor": factor / size}

    def _common(self) -> dict[str, Any]:
        return {
            "device_dense": self.device_dense,
            "device_sparse": self.device_sparse,
            "compression": self.compression,
            "process_set": self.process_set,
        }

    def _reduce(self, results: list[Gradient], mine: list[int], variables: Sequence[Any]) -> None:
        sparse = [i for i in mine if isinstance(results[i], tf.IndexedSlices)]
        dense = [i for i in mine if not isinstance(results[i], tf.IndexedSlices)]
        for i in sparse:
            results[i] = allreduce(
                results[i], op=self.op, name=f"{self.name}_grad_{i}", **self._common()
            )
        for number, members in enumerate(self._grouped(dense, variables)):
            name = f"{self.name}_grads_{number}"
            reduced = grouped_allreduce(
                [results[i] for i in members], name=name, **self._factors(), **self._common()
            )
            for i, gradient in zip(members, reduced, strict=True):
                results[i] = gradient

    def _grouped(self, dense: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Returns the positions of the gradients that make one operation each."""
        if not dense:
            return []
        if isinstance(self.groups, int) and self.groups > 0:
            return [list(part) for part in split_list(dense, min(self.groups, len(dense))) if part]
        listed: list[list[int]] = []
        if isinstance(self.groups, (list, tuple)):
            position = {key_of(variables[i]): i for i in dense}
            wanted = [[position.get(key_of(v)) for v in group] for group in self.groups]
            listed = [[i for i in group if i is not None] for group in wanted]
        taken = {i for group in listed for i in group}
        rest = [i for i in dense if i not in taken]
        # In eager mode an op is done when its call returns, so only one op for all lets them travel
        # together; XLA issues all of one call before it waits for any. In a graph each starts when its
        # gradient is there.
        together = tf.executing_eagerly() or xla.in_compiled_function()
        singles = [rest] if together else [[i] for i in rest]
        return [group for group in [*listed, *singles] if group]


def check_groups(groups: Any) -> None:
    """Raises ValueError unless `groups` is None, a number or lists of variables."""
    if groups is None:
        return
    if isinstance(groups, bool) or not isinstance(groups, (int, list, tuple)):
        raise ValueError(f"{_GROUPS_TEXT} It is a {type(groups).__name__}.")
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"{_GROUPS_TEXT} It is {groups}.")
        return
    seen: set[Any] = set()
    for group in groups:
        if not isinstance(group, (list, tuple)):
            raise ValueError(f"{_GROUPS_TEXT} It has a {type(group).__name__} in it.")
        for variable in group:
            if not hasattr(variable, "assign"):
                raise ValueError(f"{_GROUPS_TEXT} A group has a {type(variable).__name__} in it.")
            if key_of(variable) in seen:
                raise ValueError(f"{_GROUPS_TEXT} {variable.name} is in them more than once.")
            seen.add(key_of(variable))


def resolve_groups(num_groups: int, groups: Any) -> Any:
    """Returns what the parameters `num_groups` (old) and `groups` ask for."""
    if not num_groups:
        return groups
    warnings.warn(
        "Parameter num_groups is deprecated; use groups=<number> instead.",
        DeprecationWarning,
        stacklevel=4,
    )
    return num_groups if groups is None else groups
