"""Elastic training with Keras. Not available yet: every name says so when it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.elastic import Placeholder, State, not_available

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(State, placeholder=True):
    """The state of a model and its optimizer."""


class CommitStateCallback(Placeholder, placeholder=True):
    """Commits a state every few batches."""


class UpdateBatchStateCallback(Placeholder, placeholder=True):
    """Keeps the number of the batch in a state."""


class UpdateEpochStateCallback(Placeholder, placeholder=True):
    """Keeps the number of the epoch in a state."""


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Raises NotImplementedError."""
    del func
    raise not_available("horovod.tensorflow.keras.elastic.run")
