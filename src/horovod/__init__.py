"""Horovod: distributed training for every framework. Import a door, such as horovod.torch, to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.runner import run

__all__ = ["__version__", "run"]
__version__ = "1.0.0"


def __getattr__(name: str) -> Any:
    # Importing horovod must cost nothing; the launcher is loaded when it is asked for.
    if name == "run":
        from horovod.runner import run

        return run
    raise AttributeError(f"module 'horovod' has no attribute {name!r}")
