"""The state of elastic training with torch, and the handlers of what it consists of."""

from __future__ import annotations

from typing import Any

from horovod.common.elastic import ObjectState, Placeholder, not_available

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class TorchState(ObjectState, placeholder=True):
    """Model, optimizer, samplers and plain objects of a worker."""


class StateHandler(Placeholder, placeholder=True):
    """Saves, restores and shares one part of a state."""


class ModelStateHandler(StateHandler, placeholder=True):
    """Handles a model."""


class OptimizerStateHandler(StateHandler, placeholder=True):
    """Handles an optimizer."""


class SamplerStateHandler(StateHandler, placeholder=True):
    """Handles an `ElasticSampler`."""


def get_handler_registry() -> list[Any]:
    """Raises NotImplementedError."""
    raise not_available("horovod.torch.elastic.state.get_handler_registry")


def set_handler_registry(registry: list[Any]) -> None:
    """Raises NotImplementedError."""
    del registry
    raise not_available("horovod.torch.elastic.state.set_handler_registry")
