"""Comparison of the variables of Keras on JAX, inside and outside of `jax.jit`.

Compiled code calls back into Python: once to count the update, and once more, in a conditional, with the
values. The callbacks are ordered, as those that reduce gradients are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from horovod.common.consistency import ConsistencyCheck, fingerprint_of_array


def compare(check: ConsistencyCheck, variables: Sequence[Any]) -> None:
    """Counts an update, and compares variables of Keras if it is time to."""
    names = [variable.path for variable in variables]
    values = [jnp.asarray(variable.value) for variable in variables]

    def compare_values(*arrays: Any) -> None:
        check.compare(
            [fingerprint_of_array(n, np.asarray(a)) for n, a in zip(names, arrays, strict=True)]
        )

    if not any(isinstance(value, jax.core.Tracer) for value in values):
        if check.is_due():
            compare_values(*values)
        return
    due = io_callback(
        lambda: np.bool_(check.is_due()), jax.ShapeDtypeStruct((), jnp.bool_), ordered=True
    )
    jax.lax.cond(
        due,
        lambda values: io_callback(compare_values, None, *values, ordered=True),
        lambda _: None,
        values,
    )
