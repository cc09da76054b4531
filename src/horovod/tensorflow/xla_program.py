"""The custom calls of the plug-in in a program of XLA, and their order."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from horovod.common.dtypes import DataType
from horovod.tensorflow._plugin import library

Tensor = Any

# TensorFlow's element types: what StableHLO calls them, and the engine's numbers.
ELEMENTS: dict[Any, tuple[str, DataType]] = {
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


@cache
def is_asynchronous() -> bool:
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


def _type_text(dtype: Any, shape: Sequence[int]) -> str:
    return f"tensor<{''.join(f'{dimension}x' for dimension in shape)}{ELEMENTS[dtype][0]}>"


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
        if is_asynchronous()
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


def call_module(
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
    results: list[Tensor] = gen_xla_ops.xla_call_module(
        args=inputs,
        version=_MODULE_VERSION,
        module=module,
        Sout=[shape for _, shape in outputs],
        Tout=[dtype for dtype, _ in outputs],
        platforms=["CPU"],
        name=name,
    )
    Order.of_graph().leave_to_us(results[0].op)
    return results


# --- In which order ------------------------------------------------------------------------------------


class Order:
    """The order of the collectives of one graph.

    XLA for CPUs starts a program's calls one after the other, or makes one wait for another because its
    result lies where the data of the other were. Which way round may depend on everything in the program. If
    the ranks' programs differ (by the sizes of what reducescatter returns, or by what the user does with the
    rank), two ranks would each wait for the other to come to another call. So each call takes something of
    the one before it as one more input, which only orders them.

    A small collective is two calls, a start and a done. A start never waits, so only the starts are ordered,
    and each done comes after all starts that do not need its result: they are in flight together.
    """

    def __init__(self) -> None:
        self.ticket: Tensor | None = None  # of the last start
        self._result: Tensor | None = None  # of a collective in one piece that came after it
        # Dones by number, as long as no start has needed them; and which of all dones an op needs, as bits.
        self._free: dict[int, Any] = {}
        self._needs: dict[Any, int] = {}
        self._needs_of_effects = (
            0  # of the last op that reads or changes something besides its inputs
        )
        self._ours: set[Any] = set()  # of which this class alone decides the order
        self._dones = 0

    @staticmethod
    def of_graph() -> Order:
        """Returns the order of the graph that is being built."""
        graph = tf.compat.v1.get_default_graph()
        if not hasattr(graph, "_horovod_order"):
            graph._horovod_order = Order()
        order: Order = graph._horovod_order
        return order

    def leave_to_us(self, op: Any) -> None:
        """TensorFlow would run it in the order of the program: it can't know what a collective does."""
        self._ours.add(op)
        manager = getattr(op.graph, "experimental_acd_manager", None)
        if manager is not None:  # a tf.function is being traced
            manager.run_independently(op)

    def inputs(self) -> list[Tensor]:
        """Returns what the next call takes besides its data."""
        return [tensor for tensor in (self.ticket, self._result) if tensor is not None]

    def whole(self, results: Sequence[Tensor]) -> None:
        """A collective in one piece was added."""
        self._result = next((r for r in results if r.shape.num_elements()), self._result)

    def started(self, ticket: Tensor) -> None:
        """A start was added: the dones that it does not need come after it."""
        self.ticket, self._result = ticket, None
        needed = self._needs_of(ticket.op)
        for number, done in list(self._free.items()):
            if needed >> number & 1:
                del self._free[number]
            else:
                done._update_input(1, ticket)

    def done(self, op: Any) -> None:
        """A done was added, whose second input is there to be changed."""
        self._needs[op] = self._needs_of(op) | 1 << self._dones
        self._free[self._dones] = op
        self._dones += 1

    def _needs_of(self, op: Any) -> int:
        """Returns the dones without which the op can't run; the places to which dones were moved don't count.

        TensorFlow orders ops with effects when the function has been traced, so they count as a chain here.
        """
        for new in op.graph.get_operations()[len(self._needs) :]:
            needs = 0
            for before in (*(tensor.op for tensor in new.inputs), *new.control_inputs):
                needs |= self._needs.get(before, 0)
            others = new._is_stateful and new not in self._ours
            if others or any(tensor.dtype == tf.resource for tensor in new.inputs):
                needs |= self._needs_of_effects
                self._needs_of_effects = needs
            self._needs[new] = needs
        return self._needs[op]
