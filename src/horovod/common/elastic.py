"""Elastic training, as seen by a worker: its names can be imported, using one raises.

Every door has its own names for it, made with `Placeholder` and `not_available`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

__all__ = ["ObjectState", "State", "run_fn"]


def not_available(name: str) -> NotImplementedError:
    """Returns the error that using `name`, the full name of a class or function, raises."""
    return NotImplementedError(
        f"Elastic training is not available yet, so {name} cannot be used. "
        "Run with a fixed number of ranks."
    )


class Placeholder:
    """Base of classes that cannot be instantiated, nor subclassed by those who use them."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raises NotImplementedError."""
        del args, kwargs
        raise not_available(f"{cls.__module__}.{cls.__qualname__}")

    def __init_subclass__(cls, *, placeholder: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not placeholder:
            base = next(base for base in cls.__mro__[1:] if issubclass(base, Placeholder))
            raise not_available(f"{base.__module__}.{base.__qualname__}")


class State(Placeholder, placeholder=True):
    """What a worker saves, restores and shares when ranks come and go."""


class ObjectState(State, placeholder=True):
    """A state made of plain objects."""


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Raises NotImplementedError."""
    del func, reset
    raise not_available("horovod.common.elastic.run_fn")
