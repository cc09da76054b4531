"""What is compiled: the engine's C API, and the libraries that lie beside the compiled module."""

from __future__ import annotations

import ctypes
from pathlib import Path

from horovod import _core


def library_path(*parts: str) -> Path:
    """Returns the path of an installed library, e.g. `library_path("tensorflow", "lib...so")`."""
    return Path(_core.__file__).parent.joinpath(*parts)


def c_api() -> ctypes.c_void_p:
    """Returns the address of the engine's table of C functions (core/c_api/horovod.h)."""
    return ctypes.c_void_p(_core.c_api())
