"""VGG-16 (Simonyan and Zisserman, 2014, configuration D)."""

from __future__ import annotations

import torch
from torch import nn

# Channels of the 3x3 convolutions of each stage; a 2x2 max pool ends every stage.
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
REDUCTION = 2 ** len(STAGES)


class VGG(nn.Module):
    """13 convolutions and 3 linear layers.

    With 224x224 inputs and 1,000 classes it has 138.4 million parameters, with 32x32 inputs and
    10 classes 33.6 million (134 MB of float32 gradients).
    """

    def __init__(self, image_size: int, num_classes: int) -> None:
        super().__init__()
        if image_size < REDUCTION:
            raise ValueError(
                f"VGG-16 needs images of at least {REDUCTION} pixels, not {image_size}"
            )
        layers: list[nn.Module] = []
        channels = 3
        for stage in STAGES:
            for width in stage:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * (image_size // REDUCTION) ** 2, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, num_classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, size, size) to (n, classes)."""
        return self.classifier(self.features(x).flatten(1))


def vgg16(image_size: int, num_classes: int) -> nn.Module:
    """VGG-16 without batch normalisation."""
    return VGG(image_size, num_classes)
