"""The options of a distributed optimizer, checked."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from typing import Any

from horovod.common.compression import Compressor, NoneCompressor
from horovod.common.dtypes import Average, Max, ReduceOp, Sum
from horovod.common.process_sets import ProcessSet, global_process_set

GROUPS_TEXT = "groups should be a non-negative integer or a list of lists of variables."


@dataclass(frozen=True)
class Options:
    """How gradients are reduced; the same on all ranks.

    Args:
        name: prefix of the operations' names; made from the optimizer's class if None.
        device_dense: device for the ops on dense gradients (TensorFlow).
        device_sparse: device for the ops on IndexedSlices (TensorFlow).
        compression: what is done to a gradient before the wire, and undone after it.
        sparse_as_dense: make gradients dense that are IndexedSlices (TensorFlow).
        gradient_predivide_factor: f: divide by f before the sum and by size/f after it.
        op: Average or Sum.
        backward_passes_per_step: sum gradients of so many passes before they are reduced and applied.
        average_aggregated_gradients: divide that sum by `backward_passes_per_step`.
        groups: a number of nearly equal groups of gradients, or lists of variables.
        process_set: the ranks that take part; others update locally.
        scale_local_gradients: divide the gradients of local variables by the size of the set.

    Raises:
        ValueError: an option is wrong.
    """

    name: str | None = None
    device_dense: str = ""
    device_sparse: str = ""
    compression: type[Compressor] = NoneCompressor
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: ReduceOp = Average
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    groups: Any = None
    process_set: ProcessSet = field(default_factory=lambda: global_process_set)
    scale_local_gradients: bool = True

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum):
            raise ValueError("op currently only supports Average and Sum")
        if self.gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError(
                f"gradient_predivide_factor={self.gradient_predivide_factor} needs op=Average, not "
                f"{ReduceOp(self.op).name}: it splits the division of the average."
            )
        if self.backward_passes_per_step < 1:
            raise ValueError(
                f"backward_passes_per_step must be at least 1, not {self.backward_passes_per_step}."
            )
        check_groups(self.groups)

    def for_largest(self) -> Options:
        """Returns the options by which the largest of all ranks' values is found."""
        other = copy.copy(self)
        changes = {"op": Max, "compression": NoneCompressor, "gradient_predivide_factor": 1.0}
        for name, value in (changes | {"groups": None}).items():
            object.__setattr__(other, name, value)  # frozen; users cannot ask for Max
        return other

    @property
    def factors(self) -> tuple[ReduceOp, float, float]:
        """The operator, and the factors before and after it."""
        factor = self.gradient_predivide_factor
        if factor == 1.0:
            return ReduceOp(self.op), 1.0, 1.0
        return Sum, 1.0 / factor, factor / (self.process_set.size() or 1)


def check_groups(groups: Any) -> None:
    """Raises ValueError unless `groups` is None, a number or lists of variables."""
    if groups is None:
        return
    if isinstance(groups, bool) or not isinstance(groups, (int, list, tuple)):
        raise ValueError(f"{GROUPS_TEXT} It is a {type(groups).__name__}.")
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"{GROUPS_TEXT} It is {groups}.")
        return
    seen: set[int] = set()
    for group in groups:
        if not isinstance(group, (list, tuple)):
            raise ValueError(f"{GROUPS_TEXT} It has a {type(group).__name__} in it.")
        for variable in group:
            if not hasattr(variable, "assign"):
                raise ValueError(f"{GROUPS_TEXT} A group has a {type(variable).__name__} in it.")
            if id(variable) in seen:
                raise ValueError(f"{GROUPS_TEXT} {variable.name} is in them more than once.")
            seen.add(id(variable))


def resolve_groups(num_groups: int, groups: Any, stacklevel: int = 4) -> Any:
    """Returns what the parameters `num_groups` (old) and `groups` ask for."""
    if not num_groups:
        return groups
    warnings.warn(
        "Parameter num_groups is deprecated; use groups=<number> instead.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )
    return num_groups if groups is None else groups
