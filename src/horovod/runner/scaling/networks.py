"""The layers of three known networks, in forward order: parameters and multiplications of each.

Counted by arithmetic from the papers' tables: VGG-16 (Simonyan and Zisserman 2014), ResNet-101 (He et al.
2015), Inception-v3 (Szegedy et al. 2015). From them follows when which gradient is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from horovod.runner.scaling.programs import Program, from_ready_times

BYTES = 4  # gradients of float32
# A backward pass multiplies twice what the forward pass does: gradients of inputs and of weights.
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Layer:
    """A convolution or matrix with what is learned beside it; `tensors` are numbers of parameters."""

    name: str
    tensors: tuple[int, ...]
    multiplications: int  # of one image, forward

    @property
    def parameters(self) -> int:
        """All of the layer's."""
        return sum(self.tensors)


class _Builder:
    """Adds layers one after the other, following the size of the image."""

    def __init__(self, size: int, channels: int = 3) -> None:
        self.layers: list[Layer] = []
        self.size, self.channels = size, channels

    def conv(
        self,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padded: bool = True,
        inputs: int | None = None,
        norm: bool = True,
    ) -> int:
        """A convolution with batch normalisation, or with a bias; returns its output channels."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        inputs = self.channels if inputs is None else inputs
        if padded:
            self.size = -(-self.size // stride)
        else:
            self.size = (self.size - height) // stride + 1
        weights = height * width * inputs * outputs
        beside = (outputs, outputs) if norm else (outputs,)
        name = f"conv{len(self.layers) + 1}"
        self.layers.append(Layer(name, (weights, *beside), weights * self.size**2))
        self.channels = outputs
        return outputs

    def pool(self, stride: int = 2, kernel: int = 2, padded: bool = False) -> None:
        """No parameters; only the size changes."""
        self.size = -(-self.size // stride) if padded else (self.size - kernel) // stride + 1

    def dense(self, inputs: int, outputs: int) -> None:
        """A fully connected layer with a bias."""
        weights = inputs * outputs
        self.layers.append(Layer(f"fc{len(self.layers) + 1}", (weights, outputs), weights))

    def paths(self, *paths: Callable[[], int], pooled: bool = False) -> None:
        """Several paths over the same input, joined along the channels; `pooled`: the input, too."""
        size, channels = self.size, self.channels
        total = channels if pooled else 0
        for path in paths:
            self.size, self.channels = size, channels
            total += path()
        self.channels = total


def vgg16() -> list[Layer]:
    """Configuration D; images of 224 x 224."""
    net = _Builder(224)
    for outputs, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            net.conv(outputs, 3, norm=False)
        net.pool()
    net.dense(7 * 7 * 512, 4096)
    net.dense(4096, 4096)
    net.dense(4096, 1000)
    return net.layers


def resnet101() -> list[Layer]:
    """Bottleneck blocks 3, 4, 23, 3; images of 224 x 224. The 3x3 convolution has the stride."""
    net = _Builder(224)
    net.conv(64, 7, stride=2)
    net.pool(padded=True)
    for stage, blocks in enumerate((3, 4, 23, 3)):
        width = 64 << stage
        for block in range(blocks):
            size, inputs = net.size, net.channels
            stride = 2 if stage > 0 and block == 0 else 1
            net.conv(width, 1)
            net.conv(width, 3, stride=stride)
            net.conv(4 * width, 1)
            if block == 0:
                net.size = size
                net.conv(4 * width, 1, stride=stride, inputs=inputs)
    net.dense(2048, 1000)
    return net.layers


def inception3() -> list[Layer]:
    """Without the auxiliary classifier; images of 299 x 299."""
    net = _Builder(299)
    conv = net.conv
    conv(32, 3, stride=2, padded=False)
    conv(32, 3, padded=False)
    conv(64, 3)
    net.pool(kernel=3)
    conv(80, 1)
    conv(192, 3, padded=False)
    net.pool(kernel=3)

    def chain(*steps: tuple[int, int | tuple[int, int]]) -> Callable[[], int]:
        def build() -> int:
            for outputs, kernel in steps:
                conv(outputs, kernel)
            return net.channels

        return build

    def shrinking(*steps: tuple[int, int | tuple[int, int]]) -> Callable[[], int]:
        """The last one has stride 2 and no padding."""

        def build() -> int:
            chain(*steps[:-1])()
            outputs, kernel = steps[-1]
            return conv(outputs, kernel, stride=2, padded=False)

        return build

    def forked(*steps: tuple[int, int]) -> Callable[[], int]:
        """A chain that ends in a row and a column side by side."""

        def build() -> int:
            chain(*steps)()
            return conv(384, (1, 3), inputs=384) + conv(384, (3, 1), inputs=384)

        return build

    for pool in (32, 64, 64):
        net.paths(
            chain((64, 1)), chain((48, 1), (64, 5)), chain((64, 1), (96, 3), (96, 3)), chain((pool, 1))
        )  # fmt: skip
    net.paths(shrinking((384, 3)), shrinking((64, 1), (96, 3), (96, 3)), pooled=True)
    row, column = (1, 7), (7, 1)
    for width in (128, 160, 160, 192):
        net.paths(
            chain((192, 1)),
            chain((width, 1), (width, row), (192, column)),
            chain((width, 1), (width, column), (width, row), (width, column), (192, row)),
            chain((192, 1)),
        )
    net.paths(
        shrinking((192, 1), (320, 3)),
        shrinking((192, 1), (192, row), (192, column), (192, 3)),
        pooled=True,
    )
    for _ in range(2):
        net.paths(
            chain((320, 1)), forked((384, 1)), forked((448, 1), (384, 3)), chain((192, 1))
        )  # fmt: skip
    net.dense(2048, 1000)
    return net.layers


NETWORKS: dict[str, Callable[[], list[Layer]]] = {
    "vgg16": vgg16,
    "resnet101": resnet101,
    "inception3": inception3,
}


def program_of(layers: list[Layer], compute: float) -> Program:
    """A step of `compute` seconds: a third forward, then backward, the last layer first.

    A layer's share of the backward pass is its share of the multiplications; its gradients are ready
    when its part is done.
    """
    total = sum(layer.multiplications for layer in layers)
    clock = compute * FORWARD_SHARE
    tensors: list[tuple[str, float, float]] = []
    for layer in reversed(layers):
        clock += compute * (1 - FORWARD_SHARE) * layer.multiplications / total
        ready = min(clock, compute)
        tensors += [
            (f"{layer.name}.{index}", count * BYTES, ready)
            for index, count in enumerate(layer.tensors)
        ]
    return from_ready_times(tensors, compute)
