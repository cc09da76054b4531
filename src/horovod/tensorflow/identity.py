"""Who am I, asked when a graph runs: so a `tf.function` built before an elastic change stays right."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.tensorflow import xla
from horovod.tensorflow._plugin import ops

__all__ = ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns the number of ranks in a set, an int32 scalar; FailedPreconditionError before init."""
    if xla.in_compiled_function():
        return xla.answer("size", process_set_id, name)
    return ops.horovod_size(process_set_id=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Returns 1 if this process is in the set, else 0, an int32 scalar."""
    if xla.in_compiled_function():
        return xla.answer("included", process_set_id, name)
    return ops.horovod_process_set_included(process_set_id=process_set_id, name=name)


def local_size_op(name: str | None = None) -> Any:
    """Returns the number of ranks on this host, an int32 scalar."""
    if xla.in_compiled_function():
        return xla.answer("local_size", name=name)
    return ops.horovod_local_size(name=name)


def rank_op(name: str | None = None) -> Any:
    """Returns the rank of this process, an int32 scalar."""
    if xla.in_compiled_function():
        return xla.answer("rank", name=name)
    return ops.horovod_rank(name=name)


def local_rank_op(name: str | None = None) -> Any:
    """Returns the rank of this process on its host, an int32 scalar."""
    if xla.in_compiled_function():
        return xla.answer("local_rank", name=name)
    return ops.horovod_local_rank(name=name)


for _op in ("Size", "ProcessSetIncluded", "LocalSize", "Rank", "LocalRank", "Join"):
    tf.no_gradient(f"Horovod{_op}")
