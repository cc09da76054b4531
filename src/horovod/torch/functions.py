"""Broadcast of parameters and of optimizer state, and of any Python object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import submission

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[tuple[str, Tensor] | Tensor],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites tensors, in place, with the values they have on the root.

    Args:
        params: a mapping such as `model.state_dict()`, or an iterable (a generator too) of pairs of
            name and tensor, such as `model.named_parameters()`, or of tensors.
        root_rank: global rank whose values all ranks get.
        process_set: ranks that take part.

    Raises:
        ValueError: `params` is none of these.
    """
    handles = [
        submission.broadcast(tensor, root_rank, name, process_set, in_place=True)
        for name, tensor in _named_tensors(params)
    ]
    for handle in handles:
        submission.wait(handle)


def _named_tensors(params: Any) -> list[tuple[str | None, Tensor]]:
    if isinstance(params, Mapping):
        # Every rank must submit the same, and insertion orders may differ.
        pairs: list[Any] = sorted(params.items(), key=lambda item: str(item[0]))
    elif isinstance(params, Iterable) and not isinstance(params, (str, bytes, Tensor)):
        pairs = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    for pair in pairs:
        if len(pair) != 2 or not isinstance(pair[1], Tensor):
            shown = pair[0] if len(pair) == 2 else pair
            raise ValueError(
                f"invalid params of type: {type(params)}; entry {shown!r} is no tensor, "
                f"but a {type(pair[-1]).__name__}"
            )
    return [(None if name is None else str(name), tensor) for name, tensor in pairs]


class _TensorSlot(NamedTuple):
    """Stands for a tensor in a structure that is sent as an object."""

    position: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_cpu: bool


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: Any = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives an optimizer the state and the options that it has on the root.

    Works for every optimizer, used or fresh on either side: the root sends the structure of its
    state, then its tensors. Tensors that fit are overwritten in place, others are created.
    Parameters and their gradients are not touched, and nothing is computed.

    Args:
        optimizer: same class and parameter groups on all ranks.
        root_rank: global rank whose state all ranks get.
        model: accepted for old callers, not needed.
        process_set: ranks that take part.

    Raises:
        ValueError: numbers of parameter groups or of parameters differ from the root's.
    """
    del model
    groups = optimizer.param_groups
    sizes = [len(group["params"]) for group in groups]
    tensors: list[Tensor] = []
    structure: Any = None
    if _is_rank(root_rank, process_set):
        options = [
            {key: value for key, value in group.items() if key != "params"} for group in groups
        ]
        states = [
            [optimizer.state.get(parameter) for parameter in group["params"]] for group in groups
        ]
        structure = _pack({"sizes": sizes, "options": options, "states": states}, tensors)
    structure = broadcast_object(
        structure, root_rank, name="optimizer_state", process_set=process_set
    )
    if structure["sizes"] != sizes:
        raise ValueError(
            f"rank {root_rank} has parameter groups of {structure['sizes']} parameters, this rank "
            f"of {sizes}; add the same parameter groups on all ranks before the broadcast."
        )
    if not _is_rank(root_rank, process_set):
        tensors = _adopt(optimizer, structure)
    handles = [
        submission.broadcast(tensor, root_rank, f"optimizer_state.{i}", process_set, in_place=True)
        for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        submission.wait(handle)


def _is_rank(root_rank: int, process_set: ProcessSet) -> bool:
    rank = process_set.rank()
    return (
        rank is not None and process_set.ranks is not None and process_set.ranks[rank] == root_rank
    )


def _pack(value: Any, tensors: list[Tensor]) -> Any:
    """Returns `value` with its tensors moved to the list and stand-ins in their places."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _TensorSlot(
            len(tensors) - 1, tuple(value.shape), value.dtype, value.device.type == "cpu"
        )
    if isinstance(value, dict):
        return {key: _pack(item, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_pack(item, tensors) for item in value)
    return value


def _adopt(optimizer: torch.optim.Optimizer, structure: Any) -> list[Tensor]:
    """Gives the optimizer the root's structure; returns the tensors that still need values."""
    tensors: dict[int, Tensor] = {}
    for group, options, states in zip(
        optimizer.param_groups, structure["options"], structure["states"], strict=True
    ):
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        for key, value in options.items():
            group[key] = _unpack(value, group.get(key), device, tensors)
        for parameter, state in zip(group["params"], states, strict=True):
            if state is None:
                optimizer.state.pop(parameter, None)
                continue
            own = optimizer.state.get(parameter)
            optimizer.state[parameter] = _unpack(state, own, parameter.device, tensors)
    return [tensors[i] for i in range(len(tensors))]


def _unpack(value: Any, own: Any, device: torch.device, tensors: dict[int, Tensor]) -> Any:
    """Rebuilds what `_pack` took apart, with this rank's tensors where they fit."""
    if isinstance(value, _TensorSlot):
        fits = isinstance(own, Tensor) and own.shape == value.shape and own.dtype == value.dtype
        if not fits:
            target = torch.device("cpu") if value.on_cpu else device
            own = torch.zeros(value.shape, dtype=value.dtype, device=target)
        tensors[value.position] = own
        return own
    if isinstance(value, dict):
        mine = own if isinstance(own, dict) else {}
        return {key: _unpack(item, mine.get(key), device, tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        items = list(own) if isinstance(own, (list, tuple)) else []
        items += [None] * (len(value) - len(items))
        return type(value)(
            _unpack(item, mine, device, tensors) for item, mine in zip(value, items, strict=False)
        )
    return value
