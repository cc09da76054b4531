"""Elastic training with TensorFlow. Not available yet: every name says so when it is used."""

from __future__ import annotations

from typing import Any, NoReturn

_TEXT = "Elastic training is not available yet."


def run(func: Any) -> NoReturn:
    """Not available yet."""
    del func
    raise NotImplementedError(_TEXT)


class TensorFlowKerasState:
    """Not available yet."""

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        raise NotImplementedError(_TEXT)


class TensorFlowState:
    """Not available yet."""

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        raise NotImplementedError(_TEXT)
