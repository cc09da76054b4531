"""Inception-v3 (Szegedy et al., 2015), without the auxiliary classifier."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

SMALL_IMAGE = 75  # below this the first layers keep the resolution, or nothing would be left of it


class Conv(nn.Sequential):
    """Convolution without bias, batch normalisation, ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
            nn.BatchNorm2d(outputs, eps=0.001),
            nn.ReLU(inplace=True),
        )


class Branches(nn.Module):
    """Several paths over the same input, joined along the channels."""

    def __init__(self, *paths: nn.Module) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs, h, w) to (n, sum of the paths' outputs, h', w')."""
        return torch.cat([path(x) for path in self.paths], 1)


def row(inputs: int, outputs: int, length: int) -> Conv:
    """A 1 x length convolution that keeps the size."""
    return Conv(inputs, outputs, (1, length), padding=(0, length // 2))


def column(inputs: int, outputs: int, length: int) -> Conv:
    """A length x 1 convolution that keeps the size."""
    return Conv(inputs, outputs, (length, 1), padding=(length // 2, 0))


def pooled(inputs: int, outputs: int) -> nn.Sequential:
    """A 3x3 average, then a 1x1 convolution."""
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), Conv(inputs, outputs, 1))


def block_35(inputs: int, pool_outputs: int) -> Branches:
    """The block of the 35x35 grid: 1x1, 5x5, two 3x3, and pooling."""
    return Branches(
        Conv(inputs, 64, 1),
        nn.Sequential(Conv(inputs, 48, 1), Conv(48, 64, 5, padding=2)),
        nn.Sequential(Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, padding=1)),
        pooled(inputs, pool_outputs),
    )


def reduce_35(inputs: int) -> Branches:
    """From the 35x35 to the 17x17 grid."""
    return Branches(
        Conv(inputs, 384, 3, stride=2),
        nn.Sequential(Conv(inputs, 64, 1), Conv(64, 96, 3, padding=1), Conv(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, stride=2),
    )


def block_17(width: int) -> Branches:
    """The block of the 17x17 grid: 7x7 convolutions split into rows and columns."""
    return Branches(
        Conv(768, 192, 1),
        nn.Sequential(Conv(768, width, 1), row(width, width, 7), column(width, 192, 7)),
        nn.Sequential(
            Conv(768, width, 1),
            column(width, width, 7),
            row(width, width, 7),
            column(width, width, 7),
            row(width, 192, 7),
        ),
        pooled(768, 192),
    )


def reduce_17() -> Branches:
    """From the 17x17 to the 8x8 grid."""
    return Branches(
        nn.Sequential(Conv(768, 192, 1), Conv(192, 320, 3, stride=2)),
        nn.Sequential(
            Conv(768, 192, 1), row(192, 192, 7), column(192, 192, 7), Conv(192, 192, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )


def block_8(inputs: int) -> Branches:
    """The block of the 8x8 grid: wide, with rows and columns side by side."""
    return Branches(
        Conv(inputs, 320, 1),
        nn.Sequential(Conv(inputs, 384, 1), Branches(row(384, 384, 3), column(384, 384, 3))),
        nn.Sequential(
            Conv(inputs, 448, 1),
            Conv(448, 384, 3, padding=1),
            Branches(row(384, 384, 3), column(384, 384, 3)),
        ),
        pooled(inputs, 192),
    )


def stem(image_size: int) -> nn.Sequential:
    """The first layers: an eighth of the resolution, or all of it for small images."""
    small = image_size < SMALL_IMAGE
    stride, padding = (1, 1) if small else (2, 0)

    def pool() -> nn.Module:
        return nn.Identity() if small else nn.MaxPool2d(3, stride=2)

    return nn.Sequential(
        Conv(3, 32, 3, stride=stride, padding=padding),
        Conv(32, 32, 3, padding=padding),
        Conv(32, 64, 3, padding=1),
        pool(),
        Conv(64, 80, 1),
        Conv(80, 192, 3, padding=padding),
        pool(),
    )


class InceptionV3(nn.Module):
    """Stem, three grids of parallel convolutions, and a linear classifier."""

    def __init__(self, image_size: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            stem(image_size),
            *(block_35(inputs, pool) for inputs, pool in ((192, 32), (256, 64), (288, 64))),
            reduce_35(288),
            *(block_17(width) for width in (128, 160, 160, 192)),
            reduce_17(),
            *(block_8(inputs) for inputs in (1280, 2048)),
        )
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(2048, num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, size, size) to (n, classes)."""
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def inception_v3(image_size: int, num_classes: int) -> nn.Module:
    """23.8 million parameters with 1,000 classes."""
    return InceptionV3(image_size, num_classes)
