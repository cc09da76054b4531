"""Collectives inside functions that XLA compiles: `tf.function(jit_compile=True)`, Keras's train step.

XLA can't compile the plug-in's ops, but it can call functions. So a collective becomes an XlaCallModule op
whose module is one custom call of the plug-in (core/tensorflow/xla_*.cpp), with all that the engine needs
to know written into it as text. Shapes are part of the program, so they must be known when the function is
traced, and results whose shape depends on other ranks are there for equal shapes only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from horovod.common.dtypes import Average, Collective, ReduceOp, Sum
from horovod.common.engine import registered_set, set_rank
from horovod.tensorflow import calls
from horovod.tensorflow.xla_program import ELEMENTS, Order, call_module

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "answer",
    "broadcast",
    "in_compiled_function",
    "reducescatter",
]

Tensor = Any
Backward = Callable[[Sequence[Tensor]], Sequence[Tensor]]

SETTING = "HOROVOD_ENABLE_XLA_OPS"

# AutoGraph would rewrite these functions, too, where a user's function calls them.
_as_written = tf.autograph.experimental.do_not_convert

# --- Where are we? ----------------------------------------------------------------------------------

# While the gradient of a compiled collective is built: it is compiled, too, wherever that happens.
_in_gradient: ContextVar[bool] = ContextVar("in_gradient", default=False)


def in_compiled_function() -> bool:
    """Tells whether the code that is being traced will be compiled by XLA.

    It will be inside a `tf.function` with `jit_compile=True`, also when an outer one has it. The variable
    HOROVOD_ENABLE_XLA_OPS=1 says yes for every `tf.function`, =0 says no everywhere.
    """
    if tf.executing_eagerly():
        return False
    setting = os.environ.get(SETTING, "")
    if setting == "0":
        return False
    if setting == "1" and isinstance(tf.compat.v1.get_default_graph(), tf.__internal__.FuncGraph):
        return True
    return _in_gradient.get() or tf.__internal__.get_enclosing_xla_context() is not None


@contextmanager
def _gradient() -> Iterator[None]:
    token = _in_gradient.set(True)
    try:
        yield
    finally:
        _in_gradient.reset(token)


# --- One collective ------------------------------------------------------------------------------------

# Collectives of at most so many bytes, in and out, come in two halves. Their data are copied once in and once
# out, because XLA would free its buffers between the halves if something else failed.
SMALL_BYTES = 1 << 20


def _bytes_of(tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> int:
    """Returns the bytes of the tensors and of results of these shapes."""
    return sum(
        (tensor.shape.num_elements() + math.prod(shape)) * tensor.dtype.size
        for tensor, shape in zip(tensors, shapes, strict=True)
    )


@dataclass(frozen=True)
class _Call:
    """What a collective does, but for its tensors."""

    kind: Collective
    name: str  # of the node without its scope; equal on all ranks
    process_set: int
    op: ReduceOp = Sum
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    ignore_name_scope: bool = False

    def __call__(
        self, tensors: Sequence[Tensor], rows: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Adds the collective to the graph being traced.

        Args:
            tensors: of known shape, of one element type.
            rows: first dimensions of the results; those of the tensors if None.
        """
        results = [tensor.shape.as_list() for tensor in tensors]
        if rows is not None:
            results = [[first, *shape[1:]] for first, shape in zip(rows, results, strict=True)]
        name = tf.compat.v1.get_default_graph().unique_name(self.name)
        order = Order.of_graph()
        config = self._config(name, tensors, results, -1 if order.ticket is None else len(tensors))
        inputs = [*tensors, *order.inputs()]
        kinds = [(tensor.dtype, shape) for tensor, shape in zip(tensors, results, strict=True)]
        node = f"{name}/"  # the slash: exactly this name
        if _bytes_of(tensors, results) > SMALL_BYTES:
            whole = call_module("horovod_collective", config, inputs, kinds, node)
            order.whole(whole)
            return whole
        (ticket,) = call_module("horovod_start", config, inputs, [(tf.int64, [])], f"{name}_start/")
        order.started(ticket)
        outputs = call_module("horovod_done", "", [ticket, ticket], kinds, node)
        order.done(outputs[0].op)
        return outputs

    def _config(
        self,
        name: str,
        tensors: Sequence[Tensor],
        results: Sequence[list[int]],
        ticket_at: int,
    ) -> str:
        """Returns what `parse_xla_call` in core/tensorflow/xla_call.cpp reads."""
        words = [
            int(self.kind),
            int(self.op),
            # As of the ops in graphs, whose attributes are float32.
            float(np.float32(self.prescale)),
            float(np.float32(self.postscale)),
            self.root,
            self.process_set,
            int(len(tensors) > 1),
            ticket_at,
            len(tensors),
        ]
        for tensor, result in zip(tensors, results, strict=True):
            shape = tensor.shape.as_list()
            first = result[0] if result else 1
            words += [int(ELEMENTS[tensor.dtype][1]), first, len(shape), *shape]
        if self.ignore_name_scope:
            name = name.rpartition("/")[2]
        return " ".join(map(str, [*words, name]))


def _label(tensor: Tensor) -> str:
    return calls.tensor_name(tensor) or "a tensor"


def _checked(operation: str, tensors: Sequence[Tensor], needs_rows: bool) -> list[Tensor]:
    """Returns the tensors if a compiled function can hand them to the engine.

    Raises:
        ValueError: a shape is not known, or a scalar where rows are needed.
        TypeError: the element type is not supported.
    """
    for tensor in tensors:
        if tensor.dtype not in ELEMENTS:
            raise TypeError(
                f"{operation} of {_label(tensor)}: {tensor.dtype.name} is not supported; docs/dtypes.md "
                "lists the element types. Cast the tensor."
            )
        if not tensor.shape.is_fully_defined():
            raise ValueError(
                f"{operation} of {_label(tensor)}: its shape {tensor.shape} is not known when the function "
                "is traced, and XLA compiles for fixed shapes. Give it one (a fixed batch size, "
                "batch(..., drop_remainder=True), tf.ensure_shape; for gradients of embeddings "
                "sparse_as_dense=True), or do not compile the function (jit_compile=False)."
            )
        if needs_rows and tensor.shape.rank == 0:
            raise ValueError(
                f"{operation} of {_label(tensor)}: a scalar has no first dimension; reshape it to (1,)."
            )
    return list(tensors)


def _named(op: str, name: str | None, tensors: Sequence[Tensor]) -> str:
    grouped = "Grouped" if len(tensors) > 1 else ""
    return name or calls.graph_name(f"Horovod{grouped}{op}", tensors)


def _differentiable(
    call: Callable[[Sequence[Tensor]], list[Tensor]], backward: Backward, tensors: list[Tensor]
) -> list[Tensor]:
    """Returns `call(tensors)`; its gradient is `backward` of the gradients of its results."""

    @tf.custom_gradient
    def forward(*inputs: Tensor) -> tuple[list[Tensor], Callable[..., Sequence[Tensor]]]:
        @_as_written
        def gradient(*gradients: Tensor) -> Sequence[Tensor]:
            with _gradient():
                return backward(gradients)

        return call(inputs), gradient

    return list(forward(*tensors))


# --- The collectives ----------------------------------------------------------------------------------
# Gradients are those of horovod.tensorflow.gradients, for shapes that are known.


@_as_written
def allreduce(
    tensors: Sequence[Tensor],
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> list[Tensor]:
    """Reduces tensors of one element type, several as one group. Shapes and types stay."""
    tensors = _checked("allreduce", tensors, needs_rows=False)
    call = _Call(
        Collective.ALLREDUCE,
        _named("Allreduce", name, tensors),
        process_set,
        op=op,
        prescale=prescale,
        postscale=postscale,
        ignore_name_scope=ignore_name_scope,
    )

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        gradient_name = _gradient_name(call.name)
        return allreduce(
            gradients, op, prescale, postscale, gradient_name, process_set, ignore_name_scope
        )

    return _differentiable(call, backward, tensors)


def _gradient_name(name: str) -> str:
    return f"{name}_gradient"


def _averages(gradients: Sequence[Tensor], call: _Call) -> list[Tensor]:
    """Returns the means over the ranks of the gradients of what `call` returned."""
    return allreduce(
        gradients,
        Average,
        name=_gradient_name(call.name),
        process_set=call.process_set,
        ignore_name_scope=call.ignore_name_scope,
    )


@_as_written
def allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> list[Tensor]:
    """Concatenates tensors of one element type along the first dimension.

    Args:
        tensors: of the same shape on all ranks; several are one group.
        name: of the operation; from the tensors' names if None.
        process_set: id of the set.
        ignore_name_scope: the operation's name is that of the node without its scope, in all of these.

    Returns:
        Tensors with the size of the set times as many rows.
    """
    tensors = _checked("allgather", tensors, needs_rows=True)
    size = len(registered_set(process_set).ranks)
    return _gathered(
        tensors,
        [size * tensor.shape[0] for tensor in tensors],
        _named("Allgather", name, tensors),
        process_set,
        ignore_name_scope,
    )


def _gathered(
    tensors: list[Tensor],
    totals: Sequence[int],
    name: str,
    process_set: int,
    ignore_name_scope: bool,
) -> list[Tensor]:
    """Returns tensors of `totals` rows, of which every rank has its share: the first may have one more."""
    call = _Call(Collective.ALLGATHER, name, process_set, ignore_name_scope=ignore_name_scope)

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        averages = _averages(gradients, call)
        me = answer("set_rank", process_set)
        return [
            _own_rows(average, me, tensor.shape[0], process_set)
            for average, tensor in zip(averages, tensors, strict=True)
        ]

    return _differentiable(lambda inputs: call(inputs, totals), backward, tensors)


def _own_rows(tensor: Tensor, me: Tensor, count: int, process_set: int) -> Tensor:
    """Returns the `count` rows of the member with the number `me`, known when the function runs."""
    each, more = divmod(tensor.shape[0], len(registered_set(process_set).ranks))
    rest = tensor.shape.as_list()[1:]
    begin = me * each + tf.minimum(me, more)
    return tf.slice(tensor, tf.stack([begin, *(0 for _ in rest)]), [count, *rest])


@_as_written
def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> Tensor:
    """Returns the tensor that the global rank `root_rank` has; shape and type are equal on all ranks."""
    tensors = _checked("broadcast", [tensor], needs_rows=False)
    call = _Call(
        Collective.BROADCAST,
        _named("Broadcast", name, tensors),
        process_set,
        root=root_rank,
        ignore_name_scope=ignore_name_scope,
    )

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        (average,) = _averages(gradients, call)
        return [tf.where(tf.equal(answer("rank"), root_rank), average, tf.zeros_like(average))]

    return _differentiable(call, backward, tensors)[0]


@_as_written
def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> tuple[Tensor, Tensor]:
    """Sends equal numbers of rows to every rank of a set.

    Args:
        tensor: of the same shape on all ranks.
        splits: how many rows go to each rank: known when the function is traced, and all the same.
        name: of the operation; from the tensor's name if None.
        process_set: id of the set.
        ignore_name_scope: as for `allgather`.

    Returns:
        The rows received, and how many came from each rank, an int32 vector.

    Raises:
        ValueError: the rows can't be sent in equal parts, or TensorFlow can't tell when tracing.
    """
    (tensor,) = _checked("alltoall", [tensor], needs_rows=True)
    size = len(registered_set(process_set).ranks)
    each = _rows_for_each(tensor, splits, size)
    call = _Call(
        Collective.ALLTOALL,
        _named("Alltoall", name, [tensor]),
        process_set,
        ignore_name_scope=ignore_name_scope,
    )

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        gradient_name = _gradient_name(call.name)
        return [alltoall(gradients[0], None, gradient_name, process_set, ignore_name_scope)[0]]

    (output,) = _differentiable(
        call, backward, [tensor if each * size == tensor.shape[0] else tensor[: each * size]]
    )
    return output, tf.fill([size], tf.constant(each, tf.int32))


def _rows_for_each(tensor: Tensor, splits: Any, size: int) -> int:
    rows = tensor.shape[0]
    if splits is None:
        if rows % size:
            raise ValueError(
                f"alltoall of {_label(tensor)}: splits not provided, but its {rows} rows are not an even "
                f"multiple of the number of workers, {size}."
            )
        return rows // size
    known = tf.get_static_value(tf.convert_to_tensor(splits))
    if known is None:
        raise ValueError(
            f"alltoall of {_label(tensor)}: its splits are not known when the function is traced. A compiled "
            "function needs constants; or use jit_compile=False."
        )
    known = known.reshape(-1).tolist()
    if len(known) != size:
        raise ValueError(
            f"alltoall of {_label(tensor)}: {len(known)} splits for {size} ranks; give one for each."
        )
    if len(set(known)) != 1 or known[0] < 0:
        raise ValueError(
            f"alltoall of {_label(tensor)}: a compiled function exchanges the same number of rows with every "
            f"rank, and its splits are {known}. Pad the rows, or use jit_compile=False."
        )
    if known[0] * size > rows:
        raise ValueError(
            f"alltoall of {_label(tensor)}: its splits {known} add up to more than its {rows} rows."
        )
    return int(known[0])


@_as_written
def reducescatter(
    tensors: Sequence[Tensor],
    op: ReduceOp,
    prescale: float = 1.0,
    postscale: float = 1.0,
    name: str | None = None,
    process_set: int = 0,
    ignore_name_scope: bool = False,
) -> list[Tensor]:
    """Reduces tensors of one element type and returns this rank's rows; the first ranks get one more.

    Which rows these are is fixed when the function is traced.
    """
    tensors = _checked("reducescatter", tensors, needs_rows=True)
    size = len(registered_set(process_set).ranks)
    me = set_rank(process_set)
    rows = [tensor.shape[0] for tensor in tensors]
    mine = [count // size + (me < count % size) for count in rows]
    call = _Call(
        Collective.REDUCESCATTER,
        _named("Reducescatter", name, tensors),
        process_set,
        op=op,
        prescale=prescale,
        postscale=postscale,
        ignore_name_scope=ignore_name_scope,
    )
    factor = prescale * postscale * (size if op is Sum else 1)

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        scaled = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
        return _gathered(scaled, rows, _gradient_name(call.name), process_set, ignore_name_scope)

    return _differentiable(lambda inputs: call(inputs, mine), backward, tensors)


# --- Who am I, asked when the program runs -----------------------------------------------------------

# Values of XlaQuestion::Kind and of the constants in core/c_api/horovod.h.
_QUESTIONS = {
    "rank": (0, 0),
    "size": (1, 0),
    "local_rank": (0, 2),
    "local_size": (0, 3),
    "set_rank": (2, 0),
    "included": (3, 0),
}


@_as_written
def answer(question: str, process_set: int = 0, name: str | None = None) -> Tensor:
    """Returns an int32 scalar that the program asks for when it runs, so it is the same on all ranks.

    Args:
        question: "rank", "local_rank", "local_size"; or of a set: "size", "set_rank" (-1 outside of
            it), "included" (1 or 0).
        process_set: id of the set.
        name: of the node.
    """
    kind, what = _QUESTIONS[question]
    (value,) = call_module(
        "horovod_question",
        f"{kind} {what} {process_set}",
        [],
        [(tf.int32, [])],
        name or f"Horovod_{question}",
    )
    return value
