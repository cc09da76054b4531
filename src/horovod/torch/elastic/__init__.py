"""`horovod.torch.elastic`: its names can be imported, using one raises NotImplementedError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.elastic import not_available
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)

__all__ = [
    "ElasticSampler",
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "run",
    "set_handler_registry",
]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Raises NotImplementedError."""
    del func
    raise not_available("horovod.torch.elastic.run")
