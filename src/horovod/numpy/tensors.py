"""NumPy arrays as the engine sees them: pointer, dtype, shape; and results as arrays."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from horovod.common.collectives import HostTensor, Output, count_refusal
from horovod.common.dtypes import DataType
from horovod.common.process_sets import ProcessSet

Array = NDArray[Any]


def _known_dtypes() -> dict[np.dtype[Any], DataType]:
    known: dict[np.dtype[Any], DataType] = {
        np.dtype(dtype.name.lower()): dtype for dtype in DataType if dtype is not DataType.BFLOAT16
    }
    if importlib.util.find_spec("ml_dtypes") is not None:  # NumPy itself has no bfloat16
        bfloat16 = importlib.import_module("ml_dtypes").bfloat16
        known[np.dtype(bfloat16)] = DataType.BFLOAT16
    return known


DTYPES = _known_dtypes()


def dtype_of(array: Array) -> DataType:
    """Returns the engine's name for the array's dtype.

    Raises:
        ValueError: the engine has no such type (strings, objects, foreign byte order, ...).
    """
    try:
        return DTYPES[array.dtype]
    except KeyError:
        raise ValueError(f"Tensor type {array.dtype} is not supported.") from None


def as_array(tensor: ArrayLike) -> Array:
    """Returns the argument as a C-contiguous array; copies only when it is not one."""
    array = np.asarray(tensor)
    return array if array.flags.c_contiguous else array.copy(order="C")


_address = ctypes.addressof
_first_byte = ctypes.c_char.from_buffer


def _pointer(array: Array) -> int:
    try:  # four times as fast as the general way
        return _address(_first_byte(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        pass  # read-only, empty, or of a dtype that has no buffer format (bfloat16)
    pointer: int = array.__array_interface__["data"][0]
    return pointer


def describe(array: Array) -> HostTensor:
    """Describes a C-contiguous array, which the caller keeps alive."""
    return _pointer(array), dtype_of(array), array.shape


def describe_all(
    arrays: Sequence[Array], name: str | None, process_set: ProcessSet
) -> list[HostTensor]:
    """Describes the arrays of one call; a refusal counts as a submission, as `submit`'s do."""
    try:
        return [describe(array) for array in arrays]
    except ValueError:
        count_refusal(name, process_set)
        raise


def like(array: Array) -> Array:
    """Returns an uninitialised C-contiguous array of the same shape and dtype."""
    return np.empty(array.shape, array.dtype)


def writable_target(tensor: Any) -> Array:
    """Returns the array of an in-place operation.

    Raises:
        TypeError: the argument is not an array.
        ValueError: the array is read-only.
    """
    if not isinstance(tensor, np.ndarray):
        raise TypeError(f"An in-place operation needs an array, not {type(tensor).__name__}.")
    if not tensor.flags.writeable:
        raise ValueError("An in-place operation needs a writable array.")
    return tensor


def write_back(targets: Sequence[Array], results: Sequence[Array]) -> None:
    """Copies results into the views they stand for; where both are one array nothing is done."""
    for target, result in zip(targets, results, strict=True):
        if target is not result:
            target[...] = result


def from_output(output: Output, dtype: np.dtype[Any]) -> Array:
    """Returns the core's buffer as an array without copying it."""
    if 0 in output.shape:
        return np.empty(output.shape, dtype)
    return np.frombuffer(output.buffer, dtype).reshape(output.shape)


def gathered(arrays: Sequence[Array]) -> Callable[[list[Output]], list[Array]]:
    """Returns the function that makes arrays of the outputs that belong to these inputs."""
    dtypes = [array.dtype for array in arrays]
    return lambda outputs: [from_output(o, dtype) for o, dtype in zip(outputs, dtypes, strict=True)]
