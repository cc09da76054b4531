"""Torch tensors as the engine sees them: contiguous host memory with a pointer, dtype and shape.

A contiguous CPU tensor goes to the engine as it is. Anything else travels as a contiguous copy in
logical order, and results are copied back into the caller's strides: the same shape may be laid out
differently on two ranks, and element i must meet element i.

GPU tensors travel through host memory:
- pinned: the host copy of a CUDA tensor that `on_host` makes. The engine writes the results of
  allreduce and broadcast into that same copy, so these are pinned in both directions;
- pageable: the results of allgather, alltoall and reducescatter, which the engine allocates;
  `from_output` copies them to the GPU and blocks meanwhile. Host copies of tensors on other
  accelerators than CUDA's are pageable too.
A backend that reads device memory would be reached by widening `on_host` and by passing `device` to
`collectives.submit`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from horovod.common.collectives import HostTensor, Output
from horovod.common.dtypes import DataType

DATA_TYPES: dict[torch.dtype, DataType] = {
    torch.uint8: DataType.UINT8,
    torch.int8: DataType.INT8,
    torch.uint16: DataType.UINT16,
    torch.int16: DataType.INT16,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.float16: DataType.FLOAT16,
    torch.float32: DataType.FLOAT32,
    torch.float64: DataType.FLOAT64,
    torch.bool: DataType.BOOL,
    torch.bfloat16: DataType.BFLOAT16,
    torch.complex64: DataType.COMPLEX64,
    torch.complex128: DataType.COMPLEX128,
}

_increment_version = torch.autograd.graph.increment_version


def on_host(tensor: Tensor, name: str | None) -> Tensor:
    """Returns `tensor` itself when the engine can read it in place, else a contiguous host copy.

    Args:
        tensor: what the user passed.
        name: of the operation, for messages.

    Raises:
        TypeError: not a torch tensor.
        ValueError: sparse, without memory (meta, wrapper subclasses), or of an unsupported dtype.
    """
    try:
        plain = (
            tensor.is_cpu
            and tensor.layout is torch.strided
            and tensor.is_contiguous()
            and tensor.dtype in DATA_TYPES
            and not tensor.is_neg()
            and not tensor.is_conj()
        )
    except AttributeError:
        raise TypeError(
            f"operation {name!r} expected a torch.Tensor, got {type(tensor).__name__}"
        ) from None
    return tensor if plain else _host_copy(tensor, name)


def _host_copy(tensor: Tensor, name: str | None) -> Tensor:
    if tensor.layout is not torch.strided:
        raise ValueError(
            f"operation {name!r}: a tensor of layout {tensor.layout} and shape "
            f"{list(tensor.shape)} cannot be sent; "
            "use hvd.sparse_allreduce_async, or tensor.to_dense()"
        )
    if tensor.dtype not in DATA_TYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DATA_TYPES)
        raise ValueError(
            f"Tensor type {tensor.dtype} is not supported. Supported dtypes: {known}. Cast the tensor "
            f"of shape {list(tensor.shape)} that operation {name!r} was given."
        )
    if tensor.is_meta:
        raise ValueError(
            f"operation {name!r}: a meta tensor of shape {list(tensor.shape)} has no values to send"
        )
    with torch.no_grad():
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return copy.copy_(tensor)


def describe(wire: Tensor) -> HostTensor:
    """Returns pointer, dtype and shape of a tensor that `on_host` returned or `empty_wire` made."""
    pointer = wire.data_ptr()
    if pointer == 0 and wire.numel():
        raise ValueError(f"a {type(wire).__name__} of shape {list(wire.shape)} has no memory")
    return pointer, DATA_TYPES[wire.dtype], wire.shape


def write_back(target: Tensor, wire: Tensor) -> Tensor:
    """Gives an in-place result to the caller's tensor and tells autograd that it changed."""
    if wire is target:
        _increment_version(target)
    else:
        target.detach().copy_(wire, non_blocking=True)
    return target


def empty_result(tensor: Tensor, wire: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a new tensor like `tensor` (strides kept) and the wire tensor that will fill it."""
    if wire is tensor:
        result = torch.empty_like(tensor, requires_grad=False)
        return result, result
    result = torch.empty_like(tensor, requires_grad=False)
    if result.is_cpu and result.is_contiguous():
        return result, result
    return result, wire  # `wire` is a private copy, so the answer may overwrite it


def from_output(output: Output, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a tensor over memory that the engine allocated, without copying it on the CPU.

    That memory is pageable: for a GPU the copy blocks until it is done.
    """
    if 0 in output.shape:
        return torch.empty(output.shape, dtype=dtype, device=device)
    result = torch.frombuffer(output.buffer, dtype=dtype).view(output.shape)
    return result if device.type == "cpu" else result.to(device)


def check_same_device(tensors: Sequence[Tensor]) -> None:
    """Raises RuntimeError unless all members of a group are on one device."""
    if len(tensors) > 1 and len({tensor.device for tensor in tensors}) > 1:
        raise RuntimeError("Tensors in list must be on same device.")
