"""Trains a network of tf_slim on CIFAR-10 with Horovod and an Estimator of TensorFlow 1.

    python examples/tensorflow/cifar10_data.py /tmp/cifar10            # if you have not the real one
    horovodrun -np 2 python examples/tensorflow/cifar10_estimator.py --data-dir /tmp/cifar10

Needs TensorFlow 2.15, the last one with `tf.estimator`, and `pip install tf_slim`. What makes it distributed
are the lines marked with [1] to [4].
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorflow as tf
from cifar10_data import CLASSES, SIZE, Pictures, load_cifar10

import horovod.tensorflow as hvd

v1 = tf.compat.v1

NEEDS = (
    "this example needs TensorFlow 2.15, the last version with tf.estimator, and tf_slim: "
    "pip install tensorflow==2.15.1 tf_slim"
)
if not hasattr(v1, "estimator"):
    raise SystemExit(f"{NEEDS} (this is TensorFlow {tf.__version__})")
try:
    from cifar10_networks import NETWORKS, scores_of
except ModuleNotFoundError as error:
    raise SystemExit(f"{NEEDS} ({error})") from error

ModeKeys = v1.estimator.ModeKeys


def main() -> None:
    args = parse_arguments()

    hvd.init()  # [1] find the other processes: afterwards hvd.rank() and hvd.size() are known

    v1.logging.set_verbosity(v1.logging.ERROR)
    train_set, test_set = load_pictures(args)
    # `size` ranks see `size` times as many images per step, so fewer steps are needed.
    steps = max(1, args.train_steps // hvd.size())

    with ExitStack() as stack:
        estimator = v1.estimator.Estimator(
            model_fn,
            config=run_config(args, stack),
            params={"args": args, "decay_steps": steps},
        )
        say(f"{args.model_name} on {hvd.size()} process(es), {steps} steps each")
        estimator.train(
            lambda: training_input(train_set, args),
            hooks=[
                hvd.BroadcastGlobalVariablesHook(0),  # [2] all start from the variables of rank 0
                ExamplesPerSecond(args.batch_size * hvd.size(), args.log_interval),
            ],
            steps=steps,
        )
        result = None
        if hvd.rank() == 0:  # it alone has a checkpoint to evaluate
            result = estimator.evaluate(lambda: test_input(test_set, args), steps=args.eval_steps)
        # The others wait here until rank 0 has done that.
        result = hvd.broadcast_object(result, root_rank=0, name="result")
    say(
        f"step {result['global_step']}: test loss {result['loss']:.4f}, "
        f"test accuracy {result['accuracy']:.2%}"
    )
    hvd.shutdown()


def run_config(args: argparse.Namespace, stack: ExitStack) -> Any:
    """Rank 0 writes checkpoints and summaries, the others nothing.

    [3] An Estimator without a folder would write its checkpoints into a temporary one. So the other
    ranks get one that stays empty and is removed with `stack`, and are told to save nothing.
    """
    session = v1.ConfigProto(allow_soft_placement=True)
    session.gpu_options.allow_growth = True
    session.gpu_options.visible_device_list = str(hvd.local_rank())
    cores = len(os.sched_getaffinity(0))
    session.intra_op_parallelism_threads = max(1, cores // hvd.local_size())
    common = {"session_config": session, "tf_random_seed": args.seed + hvd.rank()}
    if hvd.rank() == 0:
        folder = args.model_dir or stack.enter_context(tempfile.TemporaryDirectory())
        return v1.estimator.RunConfig(
            model_dir=folder,
            save_checkpoints_steps=args.checkpoint_interval,
            log_step_count_steps=None,
            **common,
        )
    return v1.estimator.RunConfig(
        model_dir=stack.enter_context(tempfile.TemporaryDirectory()),
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        save_summary_steps=None,
        log_step_count_steps=None,
        **common,
    )


def model_fn(features: tf.Tensor, labels: tf.Tensor, mode: str, params: dict[str, Any]) -> Any:
    """The graph of the network, for training or for evaluation."""
    args = params["args"]
    training = mode == ModeKeys.TRAIN
    scores = scores_of(NETWORKS[args.model_name], features, CLASSES, training, args.weight_decay)
    predictions = tf.argmax(scores, 1)
    if mode == ModeKeys.PREDICT:
        return v1.estimator.EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
    if mode == ModeKeys.EVAL:
        accuracy = v1.metrics.accuracy(labels, predictions)
        return v1.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})

    loss += v1.losses.get_regularization_loss()
    step = v1.train.get_or_create_global_step()
    # `size` ranks average the gradients of `size` times as many images, so a step may be longer.
    rate = v1.train.cosine_decay(args.lr * hvd.size(), step, params["decay_steps"])
    optimizer = v1.train.MomentumOptimizer(rate, 0.9)
    # [4] average the gradients of all ranks
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(optimizer, compression=compression)
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        train = optimizer.minimize(loss, global_step=step)
    return v1.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def load_pictures(args: argparse.Namespace) -> tuple[Pictures, Pictures]:
    """The two parts of the data set, cut down to `--limit` images each."""
    try:
        parts = load_cifar10(args.data_dir)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"--data-dir: {error}") from error
    if not args.limit:
        return parts
    return tuple(Pictures(p.images[: args.limit], p.labels[: args.limit]) for p in parts)  # type: ignore[return-value]


def training_input(data: Pictures, args: argparse.Namespace) -> tf.data.Dataset:
    """Batches of this rank's 1/size of the images for ever, in a new order in each pass."""
    images, labels = data.images[hvd.rank() :: hvd.size()], data.labels[hvd.rank() :: hvd.size()]
    if len(labels) < args.batch_size:
        raise SystemExit(
            f"the {len(labels)} training images of rank {hvd.rank()} are fewer than one batch of "
            f"{args.batch_size}; lower --batch-size or raise --limit."
        )

    def prepared(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.resize_with_crop_or_pad(image, SIZE + 8, SIZE + 8)
        image = tf.image.random_crop(image, [SIZE, SIZE, 3])
        return shown(tf.image.random_flip_left_right(image), args), label

    return (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .shuffle(len(labels), seed=args.seed)
        .repeat()
        .map(prepared, num_parallel_calls=1)
        .batch(args.batch_size)
        .prefetch(1)
    )


def test_input(data: Pictures, args: argparse.Namespace) -> tf.data.Dataset:
    """Batches of the test images, once."""
    pairs = tf.data.Dataset.from_tensor_slices((data.images, data.labels))
    return pairs.map(lambda image, label: (shown(image, args), label)).batch(args.batch_size)


def shown(image: tf.Tensor, args: argparse.Namespace) -> tf.Tensor:
    """Pixels with mean 0 and standard deviation 1, as large as the network wants them."""
    image = tf.image.per_image_standardization(image)
    size = args.image_size or NETWORKS[args.model_name].least_size
    return image if size == SIZE else tf.image.resize(image, [size, size])


class ExamplesPerSecond(v1.train.SessionRunHook):
    """Prints on rank 0 how many images all ranks train on per second: since the start, and lately.

    The first step is left out: in it the graph is optimised.
    """

    def __init__(self, images_per_step: int, every: int) -> None:
        self._images_per_step = images_per_step
        self._every = every
        self._step: Any = None
        self._marks: list[tuple[int, float]] = []  # (step, time): the start and the latest print

    def begin(self) -> None:
        self._step = v1.train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        del run_context
        return v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context
        step, now = int(run_values.results), time.perf_counter()
        if not self._marks:
            self._marks = [(step, now)] * 2
        elif step - self._marks[1][0] >= self._every:
            average, current = (
                self._images_per_step * (step - since) / (now - then) for since, then in self._marks
            )
            say(
                f"benchmark: average examples/sec: {average:.1f}, "
                f"current examples/sec: {current:.1f}, step: {step}"
            )
            self._marks[1] = (step, now)


def say(text: str) -> None:
    """Prints on rank 0 only, so that the output does not repeat itself."""
    if hvd.rank() == 0:
        print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="CIFAR-10 with Horovod and an Estimator",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data-dir", "--data_dir", type=Path, required=True, help="folder with the .bin files")
    add(
        "--model-name", "--model_name", default="resnet_v2_50", choices=sorted(NETWORKS),
        help="network to train",
    )  # fmt: skip
    add("--train-steps", "--steps", type=int, default=10000, help="steps of one process, shared")
    add("--eval-steps", type=int, help="batches to evaluate at most (default: all)")
    add("--batch-size", type=int, default=64, help="images per rank and step")
    add("--image-size", type=int, default=0, help="resize to this (0: the least of the network)")
    add("--limit", type=int, default=0, help="use only the first N images of each part (0: all)")
    add("--lr", type=float, default=0.02, help="learning rate for one process")
    add("--weight-decay", type=float, default=1e-4, help="factor of the penalty on the weights")
    add("--model-dir", "--model_dir", default="", help="rank 0's checkpoints ('': in a folder "
        "that is removed at the end)")  # fmt: skip
    add("--checkpoint-interval", type=int, default=1000, help="steps between two checkpoints")
    add("--log-interval", type=int, default=20, help="steps between two benchmark lines")
    add("--seed", type=int, default=42, help="seed of everything random")
    add("--fp16-allreduce", action="store_true", help="send gradients as float16")
    args = parser.parse_args()
    least = NETWORKS[args.model_name].least_size
    if args.image_size and args.image_size < least:
        parser.error(f"{args.model_name} needs images of at least {least} pixels")
    if min(args.train_steps, args.batch_size, args.checkpoint_interval, args.log_interval) < 1:
        parser.error("steps, intervals and the batch size must be at least 1")
    if args.limit < 0:
        parser.error("--limit must not be negative")
    return args


if __name__ == "__main__":
    main()
