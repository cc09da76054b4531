"""ResNet-50 and ResNet-101 (He et al., 2015), with the stride in the 3x3 convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

EXPANSION = 4  # of a bottleneck block's output over its inner width
SMALL_IMAGE = 64  # up to here the first layer keeps the resolution, as is usual for CIFAR


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.reduce = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.convolve = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds the block's residual to its shortcut."""
        residual = F.relu(self.norm1(self.reduce(x)))
        residual = F.relu(self.norm2(self.convolve(residual)))
        return F.relu(self.norm3(self.expand(residual)) + self.shortcut(x))


class ResNet(nn.Module):
    """Four stages of bottleneck blocks; ``depths`` says how many blocks each stage has."""

    def __init__(self, depths: tuple[int, ...], image_size: int, num_classes: int) -> None:
        super().__init__()
        self.stem = small_stem() if image_size <= SMALL_IMAGE else large_stem()
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, width, stride))
                channels = width * EXPANSION
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, size, size) to (n, classes)."""
        features = self.blocks(self.stem(x))
        return self.classifier(F.adaptive_avg_pool2d(features, 1).flatten(1))


def large_stem() -> nn.Sequential:
    """The first layers of the ImageNet model: a quarter of the resolution."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )


def small_stem() -> nn.Sequential:
    """The first layer for CIFAR's 32x32 pixels: the full resolution."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)
    )


def resnet50(image_size: int, num_classes: int) -> nn.Module:
    """25.6 million parameters with 1,000 classes."""
    return ResNet((3, 4, 6, 3), image_size, num_classes)


def resnet101(image_size: int, num_classes: int) -> nn.Module:
    """44.5 million parameters with 1,000 classes."""
    return ResNet((3, 4, 23, 3), image_size, num_classes)
