"""One rank of one way to train with TensorFlow in `training.py`: `... alone|in-step|multiworker|horovod`.

Plain variables and a `tf.function`, so that only the exchange of gradients differs between the ways.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import tensorflow as tf

from worker_link import serve

IMAGE_SIZE, CLASSES = 32, 10  # CIFAR-10
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
LEARNING_RATE, MOMENTUM = 0.001, 0.9

Step = Callable[[Any, Any], Any]


class VGG16:
    """VGG-16 for CIFAR shapes, as in training_worker.py: 134 MB of float32 gradients."""

    def __init__(self) -> None:
        tf.random.set_seed(1)
        self.variables: list[tf.Variable] = []
        self.convolutions = []
        channels = 3
        for stage in STAGES:
            layers = []
            for width in stage:
                layers.append(self._layer([3, 3, channels, width], 9 * channels))
                channels = width
            self.convolutions.append(layers)
        widths = [channels, 4096, 4096, CLASSES]
        self.dense = [self._layer([a, b], a) for a, b in itertools.pairwise(widths)]
        self.momenta = [tf.Variable(tf.zeros_like(v), trainable=False) for v in self.variables]

    def _layer(self, shape: list[int], inputs: int) -> tuple[tf.Variable, tf.Variable]:
        kernel = tf.Variable(tf.random.normal(shape, stddev=(2.0 / inputs) ** 0.5))
        bias = tf.Variable(tf.zeros(shape[-1:]))
        self.variables += [kernel, bias]
        return kernel, bias

    def loss(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        x = images
        for stage in self.convolutions:
            for kernel, bias in stage:
                x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        x = tf.reshape(x, [tf.shape(x)[0], -1])
        for kernel, bias in self.dense[:-1]:
            x = tf.nn.dropout(tf.nn.relu(x @ kernel + bias), 0.5)
        kernel, bias = self.dense[-1]
        logits = x @ kernel + bias
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    def gradients(self, images: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = self.loss(images, labels)
        gradients: list[tf.Tensor] = tape.gradient(loss, self.variables)
        return gradients

    def apply(self, gradients: list[tf.Tensor]) -> None:
        for variable, momentum, gradient in zip(
            self.variables, self.momenta, gradients, strict=True
        ):
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=momentum.handle,
                lr=LEARNING_RATE,
                grad=gradient,
                momentum=MOMENTUM,
            )


def alone() -> tuple[int, VGG16, Step]:
    """No communication at all."""
    model = VGG16()

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        model.apply(model.gradients(images, labels))

    return int(os.environ["RANK"]), model, step


def in_step() -> tuple[int, VGG16, Step]:
    """No gradients are exchanged, but before each update the ranks wait for each other."""
    import horovod.tensorflow as hvd

    hvd.init()
    model = VGG16()

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        gradients = model.gradients(images, labels)
        with tf.control_dependencies(gradients):
            token = hvd.allreduce(tf.zeros(1), name="token")
        with tf.control_dependencies([token]):
            model.apply([tf.identity(gradient) for gradient in gradients])

    return hvd.rank(), model, step


def multiworker() -> tuple[int, VGG16, Step]:
    """`tf.distribute.MultiWorkerMirroredStrategy` with its ring, one replica for each worker."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    addresses = exchange_addresses(rank, size)
    cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
    os.environ["TF_CONFIG"] = json.dumps(cluster)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=tf.distribute.experimental.CommunicationImplementation.RING
        )
    )
    model = VGG16()

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> None:
        gradients = model.gradients(images, labels)
        context = tf.distribute.get_replica_context()
        model.apply(context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients))

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        strategy.run(replica_step, args=(images, labels))

    return rank, model, step


def exchange_addresses(rank: int, size: int) -> list[str]:
    """Returns an address for each worker; they meet in the benchmark's folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    folder = Path(os.environ["BENCH_GLOO"]).parent
    written = folder / f"address.{rank}.new"
    written.write_text(address)
    written.rename(folder / f"address.{rank}")
    files = [folder / f"address.{other}" for other in range(size)]
    while not all(file.exists() for file in files):
        time.sleep(0.05)
    return [file.read_text() for file in files]


def horovod() -> tuple[int, VGG16, Step]:
    """The usual lines, with the defaults."""
    import horovod.tensorflow as hvd

    hvd.init()
    model = VGG16()

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = model.loss(images, labels)
        tape = hvd.DistributedGradientTape(tape)
        model.apply(tape.gradient(loss, model.variables))

    hvd.broadcast_variables(model.variables, root_rank=0)
    return hvd.rank(), model, step


WAYS = {"alone": alone, "in-step": in_step, "multiworker": multiworker, "horovod": horovod}


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rank, model, step = WAYS[sys.argv[1]]()

    def steps(request: dict[str, Any]) -> dict[str, Any]:
        tf.random.set_seed(100 + rank)
        images = tf.random.normal([request["batch"], IMAGE_SIZE, IMAGE_SIZE, 3])
        labels = tf.random.uniform([request["batch"]], 0, CLASSES, tf.int32)
        seconds = []
        for _ in range(request["count"]):
            started = time.perf_counter()
            step(images, labels)
            float(model.variables[-1][0])  # the step has been done
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds}

    def gradient_bytes(_: dict[str, Any]) -> dict[str, Any]:
        return {"bytes": sum(v.shape.num_elements() * v.dtype.size for v in model.variables)}

    serve(rank, {"steps": steps, "gradient_bytes": gradient_bytes})


if __name__ == "__main__":
    main()
