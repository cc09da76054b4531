"""An Estimator with DistributedOptimizer and the hook trains as one process does on the whole batch.

The tolerance of 1e-5 allows for another order of float32 additions.
"""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

LAUNCHES = {"tensorflow1": ["-np 2", "-np 3"]}  # newer TensorFlow has no Estimator

v1 = tf.compat.v1
ROWS, FEATURES, WORDS, STEPS = 4, 6, 12, 10
NAMES = ("embedding", "first", "second", "unused")


@pytest.fixture(scope="module", autouse=True)
def job():
    v1.logging.set_verbosity(v1.logging.ERROR)
    hvd.init()
    yield
    hvd.shutdown()


def batches(ranks):
    """Yields what these ranks get, step by step."""
    for step in range(STEPS):
        parts = []
        for r in ranks:
            rng = np.random.default_rng([step, r])
            parts.append((rng.integers(0, WORDS, ROWS), rng.normal(0, 1, ROWS).astype(np.float32)))
        words, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
        yield {"words": words}, targets


def input_fn(ranks):
    types = ({"words": tf.int64}, tf.float32)
    shapes = ({"words": [None]}, [None])
    return tf.data.Dataset.from_generator(lambda: batches(ranks), types, shapes)


def model_fn(features, labels, mode, params):
    rng = np.random.default_rng(7 + params["seed"])

    def weights(name, *shape):
        return v1.get_variable(name, initializer=rng.normal(0, 0.5, shape).astype(np.float32))

    embedding, first = weights("embedding", WORDS, FEATURES), weights("first", FEATURES, 5)
    second = weights("second", 5, 1)
    weights("unused", 3)
    hidden = tf.nn.relu(tf.gather(embedding, features["words"]) @ first)
    loss = tf.reduce_mean(tf.square(tf.squeeze(hidden @ second, 1) - labels))
    kinds = {
        "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
        "adam": lambda: v1.train.AdamOptimizer(0.01),
    }
    optimizer = params["wrap"](kinds[params["kind"]]())
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train(kind, ranks, wrap, folder, seed=0, hooks=()):
    """Returns the weights after ten steps on the rows of `ranks`."""
    estimator = tf.estimator.Estimator(
        model_fn, str(folder), params={"kind": kind, "wrap": wrap, "seed": seed}
    )
    estimator.train(lambda: input_fn(ranks), hooks=list(hooks), steps=STEPS)
    return [estimator.get_variable_value(name) for name in NAMES]


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_training_equals_one_process_on_the_whole_batch(kind, tmp_path):
    expected = train(kind, list(range(hvd.size())), lambda o: o, tmp_path / "whole")
    got = train(
        kind,
        [hvd.rank()],
        hvd.DistributedOptimizer,
        tmp_path / "mine",
        seed=hvd.rank(),  # the hook gives all ranks the weights of rank 0
        hooks=[hvd.BroadcastGlobalVariablesHook(0)],
    )
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
