"""Comparison of variables over the ranks after a step: in eager mode, in `tf.function` and in graphs.

In a graph two calls back into Python do it: the first counts the step, the second, in a conditional, gets the
values. All ranks count alike, so all enter the conditional together. An error in it leaves TensorFlow as
`tf.errors.UnknownError` with the text of the `HorovodConsistencyError` in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.common.consistency import (
    VARIABLE,
    ConsistencyCheck,
    fingerprint_of_array,
    make_check,
)
from horovod.common.knobs import value_of
from horovod.tensorflow import xla

XLA_REASON = (
    "the function that updates them is compiled by XLA, which cannot call back into Python. Set "
    "jit_compile=False while you look for the difference."
)


# What is decided here is decided while a function is traced: AutoGraph has nothing to convert.
@tf.autograph.experimental.do_not_convert
def compare_after_step(check: ConsistencyCheck, variables: Sequence[Any]) -> Any:
    """Counts a step, and compares variables over the ranks if it is time to.

    Args:
        check: of the optimizer.
        variables: of TensorFlow or Keras, the same on all ranks in the same order.

    Returns:
        None in eager mode; in a graph the op, which a graph of TensorFlow 1 has to run after the update.

    Raises:
        HorovodConsistencyError: in eager mode, ranks differ.
    """
    if xla.in_compiled_function():
        check.excuse(XLA_REASON)
        return None
    names = [_name(variable) for variable in variables]

    def compare(*arrays: Any) -> np.ndarray:
        check.compare(
            [fingerprint_of_array(n, np.asarray(a)) for n, a in zip(names, arrays, strict=True)]
        )
        return np.zeros((), np.int32)

    if tf.executing_eagerly():
        if check.is_due():
            compare(*(_read(variable).numpy() for variable in variables))
        return None
    due = tf.numpy_function(lambda: np.bool_(check.is_due()), [], tf.bool)
    due.set_shape(())
    return tf.cond(
        due,
        lambda: tf.numpy_function(compare, [_read(v) for v in variables], tf.int32),
        lambda: tf.constant(0),
    )


@tf.autograph.experimental.do_not_convert
def check_of_tape(
    reduction: Any, sources: Sequence[Any]
) -> tuple[ConsistencyCheck, list[Any]] | None:
    """Returns what compares the variables that a tape computes gradients for, and those variables.

    A tape lives for one step, so the count is kept here, for all tapes with sources of the same shapes.
    A tape does not see the update: what is compared when it is asked for gradients are the variables after
    the update before. Broadcasts may come after the first.

    Args:
        reduction: of the tape.
        sources: of the gradients.
    """
    variables = [v for v in sources if hasattr(v, "assign") and not reduction.is_local(v)]
    if not variables:
        return None
    shapes = tuple((str(v.dtype), tuple(v.shape)) for v in variables)
    key = (value_of(VARIABLE), reduction.name, reduction.process_set.process_set_id, shapes)
    if key not in _of_tapes:
        check = make_check(
            f"{reduction.name}_consistency", reduction.process_set, names_matter=False
        )
        if check is not None:
            check.steps = -1  # the first call comes before the first update
        _of_tapes[key] = check
    found = _of_tapes[key]
    return None if found is None else (found, variables)


_of_tapes: dict[Any, ConsistencyCheck | None] = {}


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))


def _read(variable: Any) -> Any:
    """Returns the value as it is now; in a graph, where the op stands."""
    inner = getattr(variable, "value", None) if hasattr(variable, "path") else variable
    read = getattr(inner, "read_value", None)
    return tf.convert_to_tensor(inner) if read is None else read()
