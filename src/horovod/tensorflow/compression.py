"""Compression on the wire for TensorFlow tensors: none, float16, bfloat16, or a class of the user's own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _TensorFlowCast(CastCompressor):
    """Casts real floating-point tensors; complex numbers and integers travel as they are."""

    @staticmethod
    def is_wide_float(tensor: Any) -> bool:
        return tensor.dtype.is_floating and tensor.dtype.size > 2

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tf.cast(tensor, dtype)


class FP16Compressor(_TensorFlowCast):
    """Sends floating-point tensors as float16: 11 bits of precision, largest value 65504."""

    target = tf.float16


class BF16Compressor(_TensorFlowCast):
    """Sends floating-point tensors as bfloat16: 8 bits of precision, the range of float32."""

    target = tf.bfloat16


class Compression:
    """The choices for `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
