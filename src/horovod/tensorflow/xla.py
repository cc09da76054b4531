"""Collectives inside functions that XLA compiles: `tf.function(jit_compile=True)`, Keras's train step.

XLA can't compile the plug-in's ops, but it can call functions. So a collective becomes an XlaCallModule op
whose module is one custom call of the plug-in (core/tensorflow/xla_*.cpp), with all that the engine needs
to know written into it as text. Shapes are part of the program, so they must be known when the function is
traced, and results whose shape depends on other ranks are there for equal shapes only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from horovod.common.dtypes import Average, Collective, DataType, ReduceOp, Sum
from horovod.common.engine import registered_set, set_rank
from horovod.tensorflow import calls
from horovod.tensorflow._plugin import library

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

# TensorFlow's element types: what StableHLO calls them, and the engine's numbers.
_ELEMENTS: dict[Any, tuple[str, DataType]] = {
    tf.uint8: ("ui8", DataType.UINT8),
    tf.int8: ("i8", DataType.INT8),
    tf.uint16: ("ui16", DataType.UINT16),
    tf.int16: ("i16", DataType.INT16),
    tf.int32: ("i32", DataType.INT32),
    tf.int64: ("i64", DataType.INT64),
    tf.float16: ("f16", DataType.FLOAT16),
    tf.float32: ("f32", DataType.FLOAT32),
    tf.float64: ("f64", DataType.FLOAT64),
    tf.bool: ("i1", DataType.BOOL),
    tf.bfloat16: ("bf16", DataType.BFLOAT16),
    tf.complex64: ("complex<f32>", DataType.COMPLEX64),
    tf.complex128: ("complex<f64>", DataType.COMPLEX128),
}

# XlaCallModule: of those that 2.15 knows the newest, which newer ones still take.
_MODULE_VERSION = 8

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


@cache
def _is_asynchronous() -> bool:
    """Makes the plug-in's functions known to XLA; tells whether XLA goes on while they wait.

    Raises:
        NotImplementedError: this TensorFlow offers no way.
    """
    library.hvd_tensorflow_xla_fault.restype = ctypes.c_char_p
    fault = library.hvd_tensorflow_xla_fault().decode()
    if fault:
        raise NotImplementedError(
            f"Horovod's collectives can't be compiled by XLA in TensorFlow {tf.__version__}: {fault}. "
            "Use jit_compile=False for functions with collectives in them."
        )
    return bool(library.hvd_tensorflow_xla_is_asynchronous())


# --- One custom call --------------------------------------------------------------------------------


def _type_text(dtype: Any, shape: Sequence[int]) -> str:
    return f"tensor<{''.join(f'{dimension}x' for dimension in shape)}{_ELEMENTS[dtype][0]}>"


def _quoted(text: str) -> str:
    """Returns the text as a string of MLIR."""
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}"
        for byte in text.encode()
    )
    return f'"{"".join(plain)}"'


def _module(target: str, config: str, inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Returns a StableHLO module that calls a function of the plug-in.

    Args:
        target: name of the function.
        config: what it reads to know what to do.
        inputs: types of the arguments.
        outputs: types of the results.
    """
    names = [f"%arg{i}" for i in range(len(inputs))]
    parameters = ", ".join(f"{name}: {kind}" for name, kind in zip(names, inputs, strict=True))
    results = ", ".join(outputs)
    values = [f"%0#{i}" for i in range(len(outputs))] if len(outputs) > 1 else ["%0"]
    # Version 4 is XLA's FFI, 3 a function that is given a text and a status.
    how = (
        f"api_version = 4 : i32, backend_config = {{config = {_quoted(config)}}}"
        if _is_asynchronous()
        else f"api_version = 3 : i32, backend_config = {_quoted(config)}"
    )
    call = f"%0{f':{len(outputs)}' if len(outputs) > 1 else ''} = stablehlo.custom_call @{target}"
    return (
        f"module {{\n  func.func @main({parameters}) -> ({results}) {{\n"
        # Not to be left out, merged or made twice: other ranks wait for it.
        f"    {call}({', '.join(names)}) {{{how}, has_side_effect = true}}"
        f" : ({', '.join(inputs)}) -> ({results})\n"
        f"    return {', '.join(values)} : {results}\n  }}\n}}\n"
    )


def _call_module(
    target: str,
    config: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[tuple[Any, Any]],
    name: str,
) -> list[Tensor]:
    """Adds an op to the graph; `outputs` are pairs of element type and shape."""
    module = _module(
        target,
        config,
        [_type_text(tensor.dtype, tensor.shape) for tensor in inputs],
        [_type_text(dtype, shape) for dtype, shape in outputs],
    )
    return gen_xla_ops.xla_call_module(
        args=inputs,
        version=_MODULE_VERSION,
        module=module,
        Sout=[shape for _, shape in outputs],
        Tout=[dtype for dtype, _ in outputs],
        platforms=["CPU"],
        name=name,
    )


_ORDER = "_horovod_xla_order"


def _in_order(
    target: str,
    config: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[tuple[Any, Any]],
    name: str,
) -> list[Tensor]:
    """Adds an op that comes after those before it in the same graph.

    XLA for CPUs starts a program's calls one after the other: small programs run that way, and in others a
    call's result lies where the data of the one before it was. Their order may depend on everything in
    the program. If the ranks' programs differ (by the sizes of what reducescatter returns, or by what
    the user does with the rank), two ranks would each wait for the other to come to another call. So each
    call takes a result of the one before it as one more input, which it does not read. What is to travel
    together goes into one call.
    """
    graph = tf.compat.v1.get_default_graph()
    before = getattr(graph, _ORDER, [])
    results = _call_module(target, config, [*inputs, *before], outputs, name)
    after = [result for result in results if result.shape.num_elements()]
    setattr(graph, _ORDER, after[:1] or before)
    return results


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
        return _in_order(
            "horovod_collective",
            self._config(name, tensors, results),
            tensors,
            [(tensor.dtype, shape) for tensor, shape in zip(tensors, results, strict=True)],
            f"{name}/",  # the slash: exactly this name
        )

    def _config(self, name: str, tensors: Sequence[Tensor], results: Sequence[list[int]]) -> str:
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
            len(tensors),
        ]
        for tensor, result in zip(tensors, results, strict=True):
            shape = tensor.shape.as_list()
            first = result[0] if result else 1
            words += [int(_ELEMENTS[tensor.dtype][1]), first, len(shape), *shape]
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
        if tensor.dtype not in _ELEMENTS:
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
    )

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        return allreduce(gradients, op, prescale, postscale, _gradient_name(call.name), process_set)

    return _differentiable(call, backward, tensors)


def _gradient_name(name: str) -> str:
    return f"{name}_gradient"


@_as_written
def allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: int = 0
) -> list[Tensor]:
    """Concatenates tensors of one element type along the first dimension.

    Args:
        tensors: of the same shape on all ranks; several are one group.
        name: of the operation; from the tensors' names if None.
        process_set: id of the set.

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
    )


def _gathered(
    tensors: list[Tensor], totals: Sequence[int], name: str, process_set: int
) -> list[Tensor]:
    """Returns tensors of `totals` rows, of which every rank has its share: the first may have one more."""
    call = _Call(Collective.ALLGATHER, name, process_set)

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        averages = allreduce(gradients, Average, name=_gradient_name(name), process_set=process_set)
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
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: int = 0
) -> Tensor:
    """Returns the tensor that the global rank `root_rank` has; shape and type are equal on all ranks."""
    tensors = _checked("broadcast", [tensor], needs_rows=False)
    call = _Call(
        Collective.BROADCAST, _named("Broadcast", name, tensors), process_set, root=root_rank
    )

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        (average,) = allreduce(
            gradients, Average, name=_gradient_name(call.name), process_set=process_set
        )
        return [tf.where(tf.equal(answer("rank"), root_rank), average, tf.zeros_like(average))]

    return _differentiable(call, backward, tensors)[0]


@_as_written
def alltoall(
    tensor: Tensor, splits: Any = None, name: str | None = None, process_set: int = 0
) -> tuple[Tensor, Tensor]:
    """Sends equal numbers of rows to every rank of a set.

    Args:
        tensor: of the same shape on all ranks.
        splits: how many rows go to each rank: known when the function is traced, and all the same.
        name: of the operation; from the tensor's name if None.
        process_set: id of the set.

    Returns:
        The rows received, and how many came from each rank, an int32 vector.

    Raises:
        ValueError: the rows can't be sent in equal parts, or TensorFlow can't tell when tracing.
    """
    (tensor,) = _checked("alltoall", [tensor], needs_rows=True)
    size = len(registered_set(process_set).ranks)
    each = _rows_for_each(tensor, splits, size)
    call = _Call(Collective.ALLTOALL, _named("Alltoall", name, [tensor]), process_set)

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        return [alltoall(gradients[0], None, _gradient_name(call.name), process_set)[0]]

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
    )
    factor = prescale * postscale * (size if op is Sum else 1)

    def backward(gradients: Sequence[Tensor]) -> list[Tensor]:
        scaled = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
        return _gathered(scaled, rows, _gradient_name(call.name), process_set)

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
    (value,) = _call_module(
        "horovod_question",
        f"{kind} {what} {process_set}",
        [],
        [(tf.int32, [])],
        name or f"Horovod_{question}",
    )
    return value
