"""One adapter per door: how to make a tensor of it, read it back, and call it.

A tensor's values travel through these tests as a NumPy array in the *carrier* type of its dtype: the
type itself, or float32 for bfloat16, which NumPy does not have. A new door needs one class here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from horovod import _core
from horovod.common.dtypes import DataType, dtype_name
from horovod.common.exceptions import HorovodInternalError

DTYPES = tuple(dtype_name(dtype) for dtype in DataType)
HALF = ("float16", "bfloat16")
FLOATING = (*HALF, "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGER = ("uint8", "int8", "uint16", "int16", "int32", "int64")


def carrier(dtype: str) -> np.dtype[Any]:
    """Return the NumPy type that carries values of `dtype` through the tests."""
    return np.dtype(np.float32 if dtype == "bfloat16" else dtype)


class NumpyDoor:
    """`horovod.numpy`."""

    name = "numpy"
    dtypes = DTYPES

    def __init__(self) -> None:
        import ml_dtypes

        import horovod.numpy as hvd

        self.hvd: ModuleType = hvd
        self.bfloat16 = np.dtype(ml_dtypes.bfloat16)

    def tensor(self, values: np.ndarray[Any, Any], dtype: str) -> Any:
        return np.array(values, dtype=self.bfloat16 if dtype == "bfloat16" else dtype)

    def values(self, tensor: Any) -> np.ndarray[Any, Any]:
        return np.array(tensor, dtype=np.float32 if tensor.dtype == self.bfloat16 else None)

    def strided(self, tensor: Any) -> Any:
        """Return a tensor with the same values whose memory is not contiguous."""
        wide = np.zeros((*tensor.shape, 2), dtype=tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype)

    def unsupported(self) -> Any:
        """Return a tensor of a type that the engine does not know."""
        return np.array(["text"])


class TorchDoor:
    """`horovod.torch`."""

    name = "torch"
    dtypes = DTYPES

    def __init__(self) -> None:
        import torch

        import horovod.torch as hvd

        self.hvd: ModuleType = hvd
        self.torch = torch

    def tensor(self, values: np.ndarray[Any, Any], dtype: str) -> Any:
        array = np.array(values, dtype=carrier(dtype))
        return self.torch.from_numpy(array).to(getattr(self.torch, dtype))

    def values(self, tensor: Any) -> np.ndarray[Any, Any]:
        tensor = tensor.detach()
        if tensor.dtype == self.torch.bfloat16:
            tensor = tensor.float()
        return tensor.numpy().copy()

    def strided(self, tensor: Any) -> Any:
        """Return a tensor with the same values whose memory is not contiguous."""
        wide = self.torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
        wide[..., 0] = tensor
        return wide[..., 0]

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def unsupported(self) -> Any:
        """Return a tensor of a type that the engine does not know."""
        return self.torch.zeros(3, dtype=self.torch.uint32)


def _submitted() -> int:
    """Return how many operations were ever submitted: unlike those in flight, it only grows."""
    return _core.counters()["operations_submitted"]


class TensorflowDoor:
    """`horovod.tensorflow` in eager mode.

    What that door has not (asynchronous forms, barrier) is made of what it has. Its errors are
    `tf.errors`; here they become those of the other doors, and tests/multi/test_tensorflow_ops.py looks at
    their classes.
    """

    name = "tensorflow"
    dtypes = DTYPES

    def __init__(self) -> None:
        import tensorflow as tf

        import horovod.numpy
        import horovod.tensorflow as hvd

        self.tf = tf
        calls = {
            name: self._translated(getattr(hvd, name))
            for name in hvd.__all__
            if callable(getattr(hvd, name)) and not isinstance(getattr(hvd, name), type)
        }
        names = {name: getattr(hvd, name) for name in hvd.__all__}
        join = calls["join"]
        self.hvd = SimpleNamespace(
            **{
                **names,
                **calls,
                "join": lambda: int(join()),
                "barrier": horovod.numpy.barrier,
                "allreduce_async": self._in_thread(calls["allreduce"]),
                "poll": lambda future: future.done(),
                "synchronize": self._synchronize,
            }
        )
        # Not offered: in-place forms on tensors, which TensorFlow's cannot have.
        del self.hvd.broadcast_

    def _translated(self, call: Callable[..., Any]) -> Callable[..., Any]:
        errors = self.tf.errors

        def translated(*args: Any, **kwargs: Any) -> Any:
            try:
                return call(*args, **kwargs)
            except errors.InvalidArgumentError as error:
                raise ValueError(error.message) from error
            except errors.AbortedError as error:
                unavailable = NotImplementedError if "Adasum" in error.message else RuntimeError
                raise unavailable(error.message) from error
            except (errors.FailedPreconditionError, errors.UnknownError) as error:
                if "has not been initialized" in error.message:
                    raise ValueError(error.message) from error
                raise HorovodInternalError(error.message) from error

        return translated

    @staticmethod
    def _in_thread(call: Callable[..., Any]) -> Callable[..., Future[Any]]:
        """Make the asynchronous form of `call`; it has been submitted, or refused, on return."""

        def submit(*args: Any, **kwargs: Any) -> Future[Any]:
            before = _submitted()
            future: Future[Any] = Future()

            def run() -> None:
                try:
                    future.set_result(call(*args, **kwargs))
                except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
                    future.set_exception(error)

            threading.Thread(target=run, daemon=True).start()
            while _submitted() == before and not future.done():
                time.sleep(0.001)
            if future.done() and isinstance(future.exception(), ValueError):
                raise future.exception()
            return future

        return submit

    @staticmethod
    def _synchronize(future: Future[Any]) -> Any:
        if getattr(future, "taken", False):
            return None
        future.taken = True  # type: ignore[attr-defined]
        return future.result(timeout=60)

    def tensor(self, values: np.ndarray[Any, Any], dtype: str) -> Any:
        array = np.array(values, dtype=carrier(dtype))
        return self.tf.cast(self.tf.constant(array), dtype)

    def values(self, tensor: Any) -> np.ndarray[Any, Any]:
        if tensor.dtype == self.tf.bfloat16:
            tensor = self.tf.cast(tensor, self.tf.float32)
        return np.array(tensor)

    def strided(self, tensor: Any) -> Any:
        """Return the tensor: TensorFlow's have no strides."""
        return tensor

    def dtype_of(self, tensor: Any) -> str:
        return str(tensor.dtype.name)

    def unsupported(self) -> Any:
        """Return a tensor of a type that the engine does not know."""
        return self.tf.constant(["text"])


Door = NumpyDoor | TorchDoor | TensorflowDoor
DOORS: tuple[type[Door], ...] = (NumpyDoor, TorchDoor, TensorflowDoor)
