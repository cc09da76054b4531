"""The networks of tf_slim for pictures, by name, and Inception-v4."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tf_slim as slim
from inception_v4 import inception_v4
from tf_slim.nets import inception, resnet_v2, vgg


class Network(NamedTuple):
    """A function (images, num_classes, is_training=...) -> (scores, ...), and what it needs."""

    function: Callable[..., tuple[tf.Tensor, Any]]
    least_size: int  # of images, in pixels
    batch_norm: bool = True


_vgg = functools.partial(Network, least_size=224, batch_norm=False)

NETWORKS = {
    "vgg_16": _vgg(functools.partial(vgg.vgg_16, spatial_squeeze=False)),
    "vgg_19": _vgg(functools.partial(vgg.vgg_19, spatial_squeeze=False)),
    "inception_v1": Network(functools.partial(inception.inception_v1, spatial_squeeze=False), 224),
    "inception_v2": Network(functools.partial(inception.inception_v2, spatial_squeeze=False), 32),
    "inception_v3": Network(
        functools.partial(inception.inception_v3, spatial_squeeze=False, create_aux_logits=False),
        75,
    ),
    "inception_v4": Network(inception_v4, 75),
    "resnet_v2_50": Network(resnet_v2.resnet_v2_50, 32),
    "resnet_v2_101": Network(resnet_v2.resnet_v2_101, 32),
    "resnet_v2_152": Network(resnet_v2.resnet_v2_152, 32),
    "resnet_v2_200": Network(resnet_v2.resnet_v2_200, 32),
}


def scores_of(
    network: Network, images: tf.Tensor, classes: int, is_training: bool, weight_decay: float
) -> tf.Tensor:
    """(n, classes) scores of normalised images (n, height, width, 3), in the graph of TensorFlow 1.

    The running averages of batch normalization are updated by the ops in UPDATE_OPS, the penalty on
    the weights is in the collection of regularization losses.
    """
    lend_batch_norm()
    if network.batch_norm:
        # Averages over some twenty steps: trials are short.
        normalizer = {"decay": 0.95, "epsilon": 0.001, "scale": True}
    penalty = slim.l2_regularizer(weight_decay)
    with (
        slim.arg_scope(
            [slim.conv2d],
            weights_regularizer=penalty,
            weights_initializer=slim.variance_scaling_initializer(),
            normalizer_fn=slim.batch_norm if network.batch_norm else None,
            normalizer_params=normalizer if network.batch_norm else None,
        ),
        slim.arg_scope([slim.fully_connected], weights_regularizer=penalty),
        slim.arg_scope([slim.batch_norm], **(normalizer if network.batch_norm else {})),
    ):
        scores, _ = network.function(images, classes, is_training=is_training)
    # Fully convolutional networks score every place of larger images.
    return tf.reduce_mean(scores, [1, 2]) if scores.shape.rank == 4 else scores


def lend_batch_norm() -> None:
    """Gives tf_slim the layer behind its `batch_norm`.

    TensorFlow 2.15.1 looks for it in the package tf_keras, which brings a second TensorFlow; Keras 2.15
    has the same layer.
    """
    if importlib.util.find_spec("tf_keras") is None:
        from keras.src.legacy_tf_layers import normalization as layers
        from tensorflow.python.layers import normalization

        normalization.normalization = layers
