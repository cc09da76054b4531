"""Gradients of this rank in, gradients of all ranks out, for each backend of Keras.

TensorFlow's is `horovod.tensorflow.gradient_reduction.Reduction`; the other backends hand over lists of
tensors, and what they share is here.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from horovod._keras.options import Options
from horovod.common.process_sets import ProcessSet
from horovod.common.util import split_list

Gradient = Any  # a tensor of the backend, or None


class ListReduction(ABC):
    """Reduces lists of dense gradients. Called like TensorFlow's `Reduction`.

    Args:
        options: how.
        name: prefix of the operations' names; they count from zero in every step.
    """

    def __init__(self, options: Options, name: str) -> None:
        self.options = options
        self.name = name
        self._local: dict[int, Any] = {}  # by identity; variables have no hash

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that take part."""
        return self.options.process_set

    def register_local(self, variable: Any) -> None:
        """Keeps the gradient of this variable on its rank."""
        self._local[id(variable)] = variable

    def is_local(self, variable: Any) -> bool:
        """Tells whether the variable's gradient stays on its rank."""
        return id(variable) in self._local

    def is_needed(self) -> bool:
        """Tells whether there is anybody to reduce with."""
        if not self.process_set.included():
            return False
        return (self.process_set.size() or 1) > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"

    def __call__(self, gradients: Sequence[Gradient], variables: Sequence[Any]) -> list[Gradient]:
        """Returns the gradients, reduced over the ranks; local ones scaled.

        Args:
            gradients: one for each variable, of its shape, or None.
            variables: of Keras.
        """
        results = list(gradients)
        mine = []
        size = self.process_set.size() or 1
        for i, variable in enumerate(variables):
            if not self.is_local(variable):
                mine.append(i)
            elif results[i] is not None and self.options.scale_local_gradients and size > 1:
                results[i] = results[i] / size
        if mine and self.is_needed():
            self._reduce(results, mine, variables)
        return results

    @abstractmethod
    def _reduce(self, results: list[Gradient], mine: list[int], variables: Sequence[Any]) -> None:
        """Replaces the gradients at the positions `mine` by the reduced ones."""

    def _grouped(self, positions: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Returns the positions of the gradients that make one operation each.

        Without groups there is one operation: all gradients are there when the optimizer is called.
        """
        groups = self.options.groups
        if isinstance(groups, int) and groups > 0:
            parts = split_list(positions, min(groups, len(positions)) or 1)
            return [list(part) for part in parts if part]
        listed: list[list[int]] = []
        if isinstance(groups, (list, tuple)):
            position = {id(variables[i]): i for i in positions}
            wanted = [[position.get(id(variable)) for variable in group] for group in groups]
            listed = [[i for i in group if i is not None] for group in wanted]
        taken = {i for group in listed for i in group}
        rest = [i for i in positions if i not in taken]
        return [group for group in [*listed, rest] if group]


def make_reduction(options: Options, backend: str, default_name: str) -> Any:
    """Returns the reduction of a backend: a callable `(gradients, variables) -> gradients`.

    Args:
        options: how.
        backend: "tensorflow", "torch" or "jax".
        default_name: prefix of the operations' names if the options have none.
    """
    name = options.name or default_name
    if backend == "torch":
        from horovod._keras.reduction_torch import TorchReduction

        return TorchReduction(options, name)
    if backend == "jax":
        from horovod._keras.reduction_jax import JaxReduction

        return JaxReduction(options, name)
    from horovod.tensorflow.gradient_reduction import Reduction

    return Reduction(
        name=name,
        op=options.op,
        device_dense=options.device_dense,
        device_sparse=options.device_sparse,
        compression=options.compression,
        sparse_as_dense=options.sparse_as_dense,
        gradient_predivide_factor=options.gradient_predivide_factor,
        groups=options.groups,
        process_set=options.process_set,
        scale_local_gradients=options.scale_local_gradients,
    )
