"""One adapter per door: how to make a tensor of it, read it back, and call it.

A tensor's values travel through these tests as a NumPy array in the *carrier* type of its dtype: the
type itself, or float32 for bfloat16, which NumPy does not have. A new door needs one class here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from horovod.common.dtypes import DataType, dtype_name

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


Door = NumpyDoor | TorchDoor
DOORS: tuple[type[NumpyDoor | TorchDoor], ...] = (NumpyDoor, TorchDoor)
