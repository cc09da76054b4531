"""Variables of a model in training: where they are, and how all ranks get the root's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from horovod._keras.distribution import distribution_of
from horovod._keras.flavour import Flavour, innermost
from horovod.numpy.ops import broadcast_async, synchronize

# Unsigned numbers travel as signed ones of the same bits.
_SAME_BITS = {np.dtype(np.uint32): np.int32, np.dtype(np.uint64): np.int64}


def bring_up_to_date(model: Any) -> None:
    """Has the variables hold what the trainer works with: on JAX it keeps the values to itself during `fit`.

    After it, what is assigned to a variable goes into the next batch.
    """
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Returns an optimizer's variables without the sums of an unfinished update, a rank's own."""
    if optimizer is None:
        return []
    found = optimizer.variables
    variables = list(found() if callable(found) and not isinstance(found, list) else found)
    distribution = distribution_of(innermost(optimizer))
    if distribution is None or distribution.window is None:
        return variables
    own = {id(variable) for variable in distribution.window.variables}
    return [variable for variable in variables if id(variable) not in own]


def broadcast_variables(flavour: Flavour, variables: Sequence[Any], root_rank: int) -> None:
    """Overwrites variables with the values that they have on the root.

    Args:
        flavour: the Keras.
        variables: of Keras, the same on all ranks in the same order.
        root_rank: global rank whose values all ranks get.
    """
    if flavour.backend == "tensorflow":
        import tensorflow as tf

        from horovod.tensorflow.functions import broadcast_variables as broadcast_of_tensorflow

        operation = broadcast_of_tensorflow(variables, root_rank)
        if not tf.executing_eagerly():
            tf.compat.v1.keras.backend.get_session().run(operation)
        return
    pending = []
    for i, variable in enumerate(variables):
        value = flavour.to_numpy(variable)
        sent = value.view(_SAME_BITS.get(value.dtype, value.dtype))
        # By position: a variable has another path where the model was loaded from a file.
        name = f"broadcast_variables_{i}"
        pending.append((variable, value.dtype, broadcast_async(sent, root_rank, name)))
    for variable, dtype, handle in pending:
        variable.assign(synchronize(handle).view(dtype))


def without(variables: Iterable[Any], excluded: Iterable[Any]) -> list[Any]:
    """Returns the variables that are not among the excluded ones."""
    ids = {id(variable) for variable in excluded}
    return [variable for variable in variables if id(variable) not in ids]
