"""`torch.amp.GradScaler` looks at gradients before the optimizer does; they must be reduced first.

`scaler.step(optimizer)` and `scaler.unscale_(optimizer)` test the gradients for infinities before
`optimizer.step` is called, and skip the step if there are any. Tested on local gradients, ranks
would decide differently. Torch has no hook at that place, so the two public methods of the class
are wrapped, once, in a way that concerns distributed optimizers only: first reduce, then look.
Infinities survive a reduction, so all ranks see the same and decide the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_READY = "_horovod_reduces_first"


def reduce_before_unscaling(optimizer_class: type[Any]) -> None:
    """Makes every GradScaler reduce the gradients of `optimizer_class` before it reads them."""
    scaler = torch.amp.GradScaler
    if getattr(scaler, _READY, False):
        return
    scaler.unscale_ = _reducing(scaler.unscale_, optimizer_class)  # type: ignore[method-assign]
    scaler.step = _stepping(scaler.step, optimizer_class)  # type: ignore[method-assign]
    setattr(scaler, _READY, True)


def _reducing(method: Callable[..., Any], optimizer_class: type[Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(optimizer, optimizer_class) and scaler.is_enabled():
            optimizer._reduce_for_scaler()
        return method(scaler, optimizer, *args, **kwargs)

    return wrapper


def _stepping(method: Callable[..., Any], optimizer_class: type[Any]) -> Callable[..., Any]:
    reducing = _reducing(method, optimizer_class)

    @functools.wraps(method)
    def wrapper(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return reducing(scaler, optimizer, *args, **kwargs)
        finally:
            if isinstance(optimizer, optimizer_class):
                optimizer._window_done()  # also when the step was skipped

    return wrapper
