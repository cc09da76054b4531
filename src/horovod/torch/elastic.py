"""`horovod.torch.elastic`: the name exists so that imports work; the parts come later."""

from __future__ import annotations

from typing import Any, NoReturn


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"horovod.torch.elastic.{name} is not available yet: elastic training comes in a later "
            "version. Run with a fixed number of ranks until then."
        )

    missing.__name__ = name
    return missing
