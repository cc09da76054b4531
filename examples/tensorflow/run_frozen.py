"""Runs a frozen graph on images; knows nothing of Horovod and needs TensorFlow and NumPy only.

python run_frozen.py frozen.pb images.npy        # writes scores.npy beside images.npy
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a frozen graph of freeze_for_inference.py")
    parser.add_argument("graph", type=Path, help="the frozen graph, a .pb file")
    parser.add_argument("images", type=Path, help="normalised images (n, 28, 28, 1), an .npy file")
    args = parser.parse_args()

    definition = v1.GraphDef()
    definition.ParseFromString(args.graph.read_bytes())
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        v1.import_graph_def(definition, name="")
        scores = session.run("scores:0", {"images:0": np.load(args.images)})
    np.save(args.images.with_name("scores.npy"), scores)
    print(f"{len(scores)} images; the first is a {scores[0].argmax()}")


if __name__ == "__main__":
    main()
