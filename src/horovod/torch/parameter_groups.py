"""Checks and defaults of the optimizer's `named_parameters` and `groups` arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import Tensor

from horovod.common.process_sets import ProcessSet
from horovod.common.util import is_iterable, split_list
from horovod.torch.functions import broadcast_object

_PAIRS_TEXT = (
    "named_parameters should be a sequence of tuples (name, parameter), usually produced by "
    "model.named_parameters()"
)


def resolve_names(
    param_groups: Sequence[Sequence[Tensor]],
    named_parameters: Iterable[tuple[str, Tensor]] | None,
) -> dict[Tensor, str]:
    """Returns a unique name for every parameter of an optimizer.

    Raises:
        ValueError: not pairs of name and tensor, a name that is no string or used twice, or a
            parameter without a name.
    """
    if named_parameters is None:
        return {
            parameter: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(param_groups)
            for j, parameter in enumerate(group)
        }
    if not is_iterable(named_parameters):
        raise ValueError(f"{_PAIRS_TEXT}; it is a {type(named_parameters).__name__}.")
    pairs = list(named_parameters)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Tensor)):
            raise ValueError(f"{_PAIRS_TEXT}; it contains a {type(pair).__name__}.")
        if not isinstance(pair[0], str):
            raise ValueError(
                f"{_PAIRS_TEXT}; the name of the parameter of shape {list(pair[1].shape)} is "
                f"{pair[0]!r}, not a string."
            )
    twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if twice:
        raise ValueError(
            f"Parameter names in named_parameters must be unique. Found duplicates: "
            f"{', '.join(twice)}"
        )
    known = {parameter: name for name, parameter in pairs}
    parameters = [parameter for group in param_groups for parameter in group]
    unnamed = [list(parameter.shape) for parameter in parameters if parameter not in known]
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Shapes of the parameters without a name: {unnamed}"
        )
    return {parameter: known[parameter] for parameter in parameters}


def resolve_groups(
    groups: int | Sequence[Sequence[Tensor]] | None,
    names: dict[Tensor, str],
    process_set: ProcessSet,
) -> list[list[Tensor]]:
    """Returns the lists of parameters that are reduced as one operation.

    Args:
        groups: a number of nearly equal groups (in rank 0's order of parameters), or the lists
            themselves; parameters in none of them form one more group.
        names: of all parameters of the optimizer.
        process_set: the ranks that train together.

    Raises:
        ValueError: a negative number, a wrong type, or a parameter in two lists.
    """
    if groups is None or (isinstance(groups, int) and groups == 0):
        return []
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(f"groups should be a non-negative integer or a list, got {groups}")
        chunks = split_list(_common_order(names, process_set), groups)
        return [list(chunk) for chunk in chunks if chunk]
    if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
        raise ValueError(
            "groups should be a non-negative integer or a list of list of torch.Tensor, got "
            f"{type(groups).__name__}"
        )
    listed: set[Tensor] = set()
    for parameter in (parameter for group in groups for parameter in group):
        if not isinstance(parameter, Tensor):
            raise ValueError(f"groups must consist of torch.Tensor, got {type(parameter).__name__}")
        if parameter in listed:
            raise ValueError(
                f"a parameter of shape {list(parameter.shape)} appears in groups more than once"
            )
        listed.add(parameter)
    chosen = [[parameter for parameter in group if parameter in names] for group in groups]
    rest = [parameter for parameter in names if parameter not in listed]
    return [group for group in [*chosen, rest] if group]


def _common_order(names: dict[Tensor, str], process_set: ProcessSet) -> list[Tensor]:
    """Returns the parameters in the order in which the set's first rank has them."""
    ranks = process_set.ranks
    if not process_set.included() or not ranks or len(ranks) == 1:
        return list(names)
    order: list[str] = broadcast_object(
        list(names.values()), root_rank=ranks[0], name="optimizer.groups", process_set=process_set
    )
    by_name = {name: parameter for parameter, name in names.items()}
    if by_name.keys() != set(order):
        raise ValueError(
            f"rank {ranks[0]} has other parameter names than this rank; missing here: "
            f"{sorted(set(order) - by_name.keys())}, only here: {sorted(by_name.keys() - set(order))}"
        )
    return [by_name[name] for name in order]
