"""The models have the published numbers of parameters and take CIFAR and ImageNet shapes."""

from __future__ import annotations

import pytest
import torch
from models import MODELS, build_model


def parameter_count(name: str, image_size: int, classes: int) -> int:
    with torch.device("meta"):
        model = build_model(name, image_size, classes)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "image_size", "expected"),
    [
        ("vgg16", 224, 138_357_544),
        ("resnet50", 224, 25_557_032),
        ("resnet101", 224, 44_549_160),
        ("inception_v3", 299, 23_834_568),
    ],
)
def test_parameters_at_imagenet_shapes_are_those_of_the_papers(
    name: str, image_size: int, expected: int
) -> None:
    assert parameter_count(name, image_size, 1000) == expected


def test_vgg16_at_cifar_shapes_has_134_mb_of_gradients() -> None:
    assert 4 * parameter_count("vgg16", 32, 10) / 1e6 == pytest.approx(134, abs=1)


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("image_size", [32, 224, 299])
def test_every_model_takes_every_documented_image_size(name: str, image_size: int) -> None:
    with torch.device("meta"):
        model = build_model(name, image_size, 7)
        assert model(torch.empty(2, 3, image_size, image_size)).shape == (2, 7)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = build_model(name, 32, 10)
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_unknown_model_and_too_small_images_are_refused() -> None:
    with pytest.raises(ValueError, match="choose one of vgg16"):
        build_model("vgg19", 32, 10)
    with pytest.raises(ValueError, match="at least 32 pixels, not 16"):
        build_model("vgg16", 16, 10)
