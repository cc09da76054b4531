"""Objects and whole dictionaries of arrays, sent from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from horovod.common.objects import allgather_object, broadcast_object
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.numpy.ops import broadcast_async_, synchronize
from horovod.numpy.tensors import Array

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Array] | Iterable[tuple[str, Array]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites named arrays with those of the root, in place.

    Args:
        params: name -> array, or (name, array) pairs; names and shapes equal on all ranks.
        root_rank: global rank of the sender.
        process_set: the ranks that take part.

    Raises:
        ValueError: the root is not in the set, an array is read-only, or its dtype is not supported.
        HorovodInternalError: ranks disagreed, or the job was aborted.
    """
    items: list[tuple[str, Any]] = sorted(
        params.items() if isinstance(params, Mapping) else params, key=lambda item: item[0]
    )
    handles = [broadcast_async_(array, root_rank, name, process_set) for name, array in items]
    for handle in handles:
        synchronize(handle)
