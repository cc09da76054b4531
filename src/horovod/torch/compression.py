"""Compression on the wire for torch tensors: none, float16, bfloat16, or a class of the user's own."""

from __future__ import annotations

import torch
from torch import Tensor

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _TorchCast(CastCompressor):
    """Casts real floating-point tensors; complex numbers and integers travel as they are."""

    @staticmethod
    def is_wide_float(tensor: Tensor) -> bool:
        return tensor.dtype.is_floating_point and tensor.dtype.itemsize > 2

    @staticmethod
    def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return tensor.to(dtype)


class FP16Compressor(_TorchCast):
    """Sends floating-point tensors as float16: 11 bits of precision, largest value 65504."""

    target = torch.float16


class BF16Compressor(_TorchCast):
    """Sends floating-point tensors as bfloat16: 8 bits of precision, the range of float32."""

    target = torch.bfloat16


class Compression:
    """The choices for `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
