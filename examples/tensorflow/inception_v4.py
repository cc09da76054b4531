"""Inception-v4 with tf_slim, which has versions 1 to 3 only.

Szegedy et al., "Inception-v4, Inception-ResNet and the Impact of Residual Connections on Learning", 2016,
figures 3 to 9; no auxiliary classifier.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_slim as slim

MINIMUM_SIZE = 75

Tensor = Any
Step = tuple[Any, ...]  # (filters, kernel height, kernel width[, stride, padding])


def inception_v4(
    images: Tensor,
    num_classes: int,
    is_training: bool = True,
    dropout_keep_prob: float = 0.8,
    scope: str = "InceptionV4",
) -> tuple[Tensor, dict[str, Tensor]]:
    """Scores (n, num_classes) of images (n, height, width, 3), at least 75x75, and no end points."""
    with (
        tf.compat.v1.variable_scope(scope, "InceptionV4", [images]),
        slim.arg_scope([slim.batch_norm, slim.dropout], is_training=is_training),
        slim.arg_scope([slim.conv2d, slim.max_pool2d, slim.avg_pool2d], stride=1, padding="SAME"),
    ):
        net = stem(images)
        for _ in range(4):
            net = inception_a(net)
        net = reduction_a(net)
        for _ in range(7):
            net = inception_b(net)
        net = reduction_b(net)
        for _ in range(3):
            net = inception_c(net)
        net = slim.dropout(tf.reduce_mean(net, [1, 2]), dropout_keep_prob)
        return slim.fully_connected(net, num_classes, activation_fn=None, scope="Logits"), {}


def convolutions(net: Tensor, *steps: Step) -> Tensor:
    """One convolution after the other."""
    for filters, height, width, *rest in steps:
        stride, padding = rest or (1, "SAME")
        net = slim.conv2d(net, filters, [height, width], stride=stride, padding=padding)
    return net


def pooled(net: Tensor, filters: int) -> Tensor:
    """An average over the neighbours, then a 1x1 convolution."""
    return convolutions(slim.avg_pool2d(net, [3, 3]), (filters, 1, 1))


def halved(net: Tensor) -> Tensor:
    return slim.max_pool2d(net, [3, 3], stride=2, padding="VALID")


def joined(*branches: Tensor) -> Tensor:
    return tf.concat(branches, axis=3)


def stem(net: Tensor) -> Tensor:
    net = convolutions(net, (32, 3, 3, 2, "VALID"), (32, 3, 3, 1, "VALID"), (64, 3, 3))
    net = joined(halved(net), convolutions(net, (96, 3, 3, 2, "VALID")))
    net = joined(
        convolutions(net, (64, 1, 1), (96, 3, 3, 1, "VALID")),
        convolutions(net, (64, 1, 1), (64, 7, 1), (64, 1, 7), (96, 3, 3, 1, "VALID")),
    )
    return joined(convolutions(net, (192, 3, 3, 2, "VALID")), halved(net))


def inception_a(net: Tensor) -> Tensor:
    return joined(
        pooled(net, 96),
        convolutions(net, (96, 1, 1)),
        convolutions(net, (64, 1, 1), (96, 3, 3)),
        convolutions(net, (64, 1, 1), (96, 3, 3), (96, 3, 3)),
    )


def reduction_a(net: Tensor) -> Tensor:
    return joined(
        halved(net),
        convolutions(net, (384, 3, 3, 2, "VALID")),
        convolutions(net, (192, 1, 1), (224, 3, 3), (256, 3, 3, 2, "VALID")),
    )


def inception_b(net: Tensor) -> Tensor:
    return joined(
        pooled(net, 128),
        convolutions(net, (384, 1, 1)),
        convolutions(net, (192, 1, 1), (224, 1, 7), (256, 7, 1)),
        convolutions(net, (192, 1, 1), (192, 1, 7), (224, 7, 1), (224, 1, 7), (256, 7, 1)),
    )


def reduction_b(net: Tensor) -> Tensor:
    return joined(
        halved(net),
        convolutions(net, (192, 1, 1), (192, 3, 3, 2, "VALID")),
        convolutions(net, (256, 1, 1), (256, 1, 7), (320, 7, 1), (320, 3, 3, 2, "VALID")),
    )


def inception_c(net: Tensor) -> Tensor:
    narrow = convolutions(net, (384, 1, 1))
    wide = convolutions(net, (384, 1, 1), (448, 1, 3), (512, 3, 1))
    return joined(
        pooled(net, 256),
        convolutions(net, (256, 1, 1)),
        convolutions(narrow, (256, 1, 3)),
        convolutions(narrow, (256, 3, 1)),
        convolutions(wide, (256, 3, 1)),
        convolutions(wide, (256, 1, 3)),
    )
