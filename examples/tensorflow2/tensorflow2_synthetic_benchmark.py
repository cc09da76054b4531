"""Measures training speed on random images with Horovod and TensorFlow 2.

horovodrun -np 2 python examples/tensorflow2/tensorflow2_synthetic_benchmark.py --model ResNet50
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd


def main() -> None:
    args = parse_arguments()
    hvd.init()
    kind = choose_devices(args.no_cuda)

    model = build_model(args)
    optimizer = tf.keras.optimizers.SGD(0.01)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy()
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none

    images = tf.random.uniform([args.batch_size, args.image_size, args.image_size, 3])
    labels = tf.random.uniform([args.batch_size], maxval=args.num_classes, dtype=tf.int64)

    @tf.function(jit_compile=args.jit_compile)
    def train_step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def step() -> None:
        float(train_step())  # waits until the step is done

    gradient_bytes = sum(4 * int(np.prod(v.shape)) for v in model.trainable_variables)
    say(f"Model: {args.model}")
    say(f"Batch size: {args.batch_size}")
    say(f"Image size: {args.image_size}")
    say(f"Gradients: {gradient_bytes / 1e6:.1f} MB")
    say(f"Number of {kind}s: {hvd.size()}")

    say("Running warmup...")
    step()
    # After the first step all variables are there.
    hvd.broadcast_variables(model.weights, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    for _ in range(args.num_warmup_batches):
        step()

    say("Running benchmark...")
    report(measure(step, kind, args), kind)
    hvd.shutdown()


def build_model(args: argparse.Namespace) -> tf.keras.Model:
    """One of `tf.keras.applications` with random weights; nothing is downloaded."""
    make = getattr(tf.keras.applications, args.model)
    shape = (args.image_size, args.image_size, 3)
    try:
        return make(weights=None, input_shape=shape, classes=args.num_classes)
    except ValueError as error:  # most often the images are too small for this network
        raise SystemExit(f"{args.model} with --image-size {args.image_size}: {error}") from error


def measure(step: Callable[[], None], kind: str, args: argparse.Namespace) -> list[float]:
    """Images per second of this rank in each of ``--num-iters`` runs; rank 0 prints them."""
    rates = []
    for iteration in range(args.num_iters):
        started = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            step()
        rates.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - started))
        say(f"Iter #{iteration}: {rates[-1]:.1f} img/sec per {kind}")
    return rates


def report(rates: list[float], kind: str) -> None:
    """Means with 95 % of a normal distribution around them, per rank and for all ranks."""
    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    # The ranks run in step, but each has its own clock: the total is the sum of what all measured.
    total = float(hvd.allreduce(tf.constant(mean, tf.float64), op=hvd.Sum, name="rate"))
    say(f"Img/sec per {kind}: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} {kind}(s): {total:.1f} +-{hvd.size() * spread:.1f}")


def choose_devices(no_cuda: bool) -> str:
    """The GPU of this local rank if there is one, else this rank's share of the cores."""
    gpus = [] if no_cuda else tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[hvd.local_rank() :][:1], "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    # By default every rank computes with as many threads as there are cores, and they get into
    # each other's way.
    cores = len(os.sched_getaffinity(0))
    tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // hvd.local_size()))
    return "GPU" if gpus else "CPU"


def say(text: str) -> None:
    """Prints on rank 0 only."""
    if hvd.rank() == 0:
        print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Synthetic training benchmark for TensorFlow 2",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    models = [name for name in dir(tf.keras.applications) if name[0].isupper()]
    add(
        "--model", default="ResNet50", choices=models, metavar="NAME",
        help="a network of tf.keras.applications, e.g. VGG16 or InceptionV3",
    )  # fmt: skip
    add("--batch-size", type=int, default=32, help="images per rank and step")
    add("--image-size", type=int, default=224, help="height and width of the images")
    add("--num-classes", type=int, default=1000, help="outputs of the network")
    add("--num-warmup-batches", type=int, default=10, help="steps before the measurement")
    add("--num-batches-per-iter", type=int, default=10, help="steps per printed figure")
    add("--num-iters", type=int, default=10, help="printed figures")
    add("--no-cuda", action="store_true", help="stay on the CPU")
    add("--jit-compile", action="store_true", help="let XLA compile the training step")
    add("--fp16-allreduce", action="store_true", help="send gradients as float16")
    args = parser.parse_args()
    if min(args.batch_size, args.image_size, args.num_batches_per_iter, args.num_iters) < 1:
        parser.error("sizes and numbers of steps must be at least 1")
    return args


if __name__ == "__main__":
    main()
