"""Convolutional networks in plain PyTorch, by the names that the benchmark accepts."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from .inception import inception_v3
from .resnet import resnet50, resnet101
from .vgg import vgg16

MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "vgg16": vgg16,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "inception_v3": inception_v3,
}


def build_model(name: str, image_size: int, num_classes: int) -> nn.Module:
    """A new model for (n, 3, image_size, image_size) inputs and ``num_classes`` outputs."""
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; choose one of {', '.join(MODELS)}")
    return MODELS[name](image_size, num_classes)
