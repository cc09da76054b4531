"""Broadcast of variables, and objects of Python between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from horovod.common import objects
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import calls
from horovod.tensorflow.calls import set_id

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

# Counters of random generators are unsigned; they travel as signed numbers of the same bits.
_SAME_BITS = {tf.uint32: tf.int32, tf.uint64: tf.int64}


def _received(variable: Any, root_rank: int, name: str, process_set: ProcessSet) -> Any:
    value = tf.convert_to_tensor(variable)
    bits = _SAME_BITS.get(value.dtype)
    sent = value if bits is None else tf.bitcast(value, bits)
    received = calls.broadcast(sent, root_rank, name, set_id(process_set))
    return received if bits is None else tf.bitcast(received, value.dtype)


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrites variables with the values that they have on the root.

    Args:
        variables: variables of TensorFlow or Keras, the same on all ranks in the same order.
        root_rank: global rank whose values all ranks get.
        process_set: ranks that take part.
        inplace: accepted for old callers: a variable takes over the received memory in any case.

    Returns:
        None in eager mode; in a graph the op to run.
    """
    del inplace
    assignments = []
    for i, variable in enumerate(variables):
        # By position: a variable's own name may differ between ranks, for instance where one has loaded the
        # model from a file and the others have built it.
        name = f"broadcast_variables_{i}"
        assignment = variable.assign(_received(variable, root_rank, name, process_set))
        if not tf.executing_eagerly() and assignment is not None:
            assignments.append(getattr(assignment, "op", assignment))
    return None if tf.executing_eagerly() else tf.group(*assignments)


def broadcast_global_variables(root_rank: int) -> Any:
    """Returns the op that overwrites all global variables of the graph with the root's values.

    Raises:
        RuntimeError: in eager mode, where there is no collection of global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() needs a graph of TensorFlow 1, and this is eager mode. "
            "Use hvd.broadcast_variables(model.variables, root_rank=0), and the same for the "
            "optimizer's variables."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Gives all ranks the root's variables after they were initialised or restored.

    Args:
        root_rank: global rank whose values all ranks get.
        device: device for the ops, e.g. "/cpu:0".
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Adds the op to the graph, unless it is there already."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the op."""
        del coord
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank of the set; see `horovod.common.objects`.

    `session` is accepted for old callers: objects need no graph.
    """
    del session
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns the function `obj -> root's obj`, to be called as often as needed."""

    def broadcast(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return broadcast


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks of the set, in the order of ranks."""
    del session
    return objects.allgather_object(obj, name, process_set)
