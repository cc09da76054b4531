"""Comparison of a model's variables over the ranks after an update, on each backend of Keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.common.consistency import ConsistencyCheck


def compare_after_update(
    check: ConsistencyCheck, backend: str, optimizer: Any, variables: Sequence[Any]
) -> Any:
    """Counts an update, and compares variables over the ranks if it is time to.

    Args:
        check: of the optimizer.
        backend: "tensorflow", "torch" or "jax".
        optimizer: the one that has updated the variables, or has added up gradients for that.
        variables: of Keras, the same on all ranks in the same order.

    Returns:
        None; in a graph of TensorFlow the op that does it.

    Raises:
        HorovodConsistencyError: ranks differ. Out of compiled functions it comes as an error of the backend
            with this text in it.
    """
    check.calls_per_step = getattr(optimizer, "gradient_accumulation_steps", None) or 1
    if backend == "torch":
        from horovod._keras.consistency_torch import compare as compare_torch

        return compare_torch(check, variables)
    if backend == "jax":
        from horovod._keras.consistency_jax import compare as compare_jax

        return compare_jax(check, variables)
    from horovod.tensorflow.consistency import compare_after_step

    return compare_after_step(check, variables)
