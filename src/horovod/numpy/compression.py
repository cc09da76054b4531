"""Compression of NumPy arrays before they are reduced."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, ClassVar

import numpy as np

from horovod.common.compression import CastCompressor, Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class _ArrayCast(CastCompressor):
    """How NumPy arrays are cast."""

    @staticmethod
    def is_wide_float(tensor: Any) -> bool:
        dtype = np.asarray(tensor).dtype
        return dtype.kind == "f" and dtype.itemsize > 2

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return np.asarray(tensor).astype(dtype)


class FP16Compressor(_ArrayCast):
    """Sends float32 and float64 arrays as float16."""

    target = np.float16


class Compression:
    """The compressions to choose from. `bf16` is there when ml_dtypes is installed."""

    none: ClassVar[type[Compressor]] = NoneCompressor
    fp16: ClassVar[type[Compressor]] = FP16Compressor


if importlib.util.find_spec("ml_dtypes") is not None:
    _bfloat16 = importlib.import_module("ml_dtypes").bfloat16

    class BF16Compressor(_ArrayCast):
        """Sends float32 and float64 arrays as bfloat16."""

        target = _bfloat16

    Compression.bf16 = BF16Compressor  # type: ignore[attr-defined]
