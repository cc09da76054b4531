"""The rules of gradient compression, shared by all doors; each door adds its own casts.

Floating tensors wider than 16 bits are cast before the wire and back after it; everything else
travels as it is.
"""

from __future__ import annotations

from typing import Any, ClassVar


class Compressor:
    """Compresses a tensor before it is reduced and restores it afterwards. Base of the user's own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the received tensor in the form of the original one."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor itself."""
        del ctx
        return tensor


class CastCompressor(Compressor):
    """Casts to `target`. A door says what a wide floating tensor is, and how to cast."""

    target: ClassVar[Any]

    @staticmethod
    def is_wide_float(tensor: Any) -> bool:
        """Returns whether the tensor has floating elements of more than 16 bits."""
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """Returns the tensor with elements of this type."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Returns the cast tensor and its original type, or the tensor itself and None."""
        if not cls.is_wide_float(tensor):
            return tensor, None
        return cls.cast(tensor, cls.target), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Returns the tensor with its original type."""
        return tensor if ctx is None else cls.cast(tensor, ctx)
