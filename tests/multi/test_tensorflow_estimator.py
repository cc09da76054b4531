"""An Estimator with DistributedOptimizer and the hook trains as one process does on the whole batch.

The tolerance of 1e-5 allows for another order of float32 additions. With float16 activations, which have 11
bits, sums differ by one part in a thousand, and so do the weights.
"""

from __future__ import annotations

import itertools
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

LAUNCHES = {"tensorflow1": ["-np 2", "-np 3"]}  # newer TensorFlow has no Estimator

v1 = tf.compat.v1
ROWS, FEATURES, WORDS, STEPS, PASSES = 4, 6, 12, 10, 2
NAMES = ("embedding", "first", "second", "unused")


@pytest.fixture(scope="module", autouse=True)
def job():
    v1.logging.set_verbosity(v1.logging.ERROR)
    hvd.init()
    yield
    hvd.shutdown()


def batches(ranks, passes):
    """Yields what these ranks get, step by step; the rows of `passes` steps at once."""
    for first in range(0, STEPS * PASSES, passes):
        parts = []
        for r, step in itertools.product(ranks, range(first, first + passes)):
            rng = np.random.default_rng([step, r])
            parts.append((rng.integers(0, WORDS, ROWS), rng.normal(0, 1, ROWS).astype(np.float32)))
        words, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
        yield {"words": words}, targets


def input_fn(ranks, passes=1):
    types = ({"words": tf.int64}, tf.float32)
    shapes = ({"words": [None]}, [None])
    return tf.data.Dataset.from_generator(lambda: batches(ranks, passes), types, shapes)


def model_fn(features, labels, mode, params):
    rng = np.random.default_rng(7 + params["seed"])

    def weights(name, *shape):
        return v1.get_variable(name, initializer=rng.normal(0, 0.5, shape).astype(np.float32))

    embedding, first = weights("embedding", WORDS, FEATURES), weights("first", FEATURES, 5)
    second = weights("second", 5, 1)
    weights("unused", 3)
    activations = params["activations"]
    rows = tf.cast(tf.gather(embedding, features["words"]), activations)
    hidden = tf.nn.relu(rows @ tf.cast(first, activations))
    outputs = tf.cast(tf.squeeze(hidden @ tf.cast(second, activations), 1), tf.float32)
    loss = tf.reduce_mean(tf.square(outputs - labels))
    kinds = {
        "momentum": lambda: v1.train.MomentumOptimizer(0.05, 0.9),
        "adam": lambda: v1.train.AdamOptimizer(0.01),
    }
    optimizer = params["wrap"](kinds[params["kind"]]())
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train(kind, wrap, folder, *, mine, steps=STEPS, rows_of_passes=1, activations=tf.float32):
    """Returns the weights after training on this rank's rows (`mine`) or on those of all."""
    params = {"kind": kind, "wrap": wrap, "activations": activations}
    # The hook gives all ranks the weights of rank 0.
    params["seed"] = hvd.rank() if mine else 0
    hooks = [hvd.BroadcastGlobalVariablesHook(0)] if mine else []
    ranks = [hvd.rank()] if mine else list(range(hvd.size()))
    estimator = tf.estimator.Estimator(model_fn, str(folder), params=params)
    estimator.train(lambda: input_fn(ranks, rows_of_passes), hooks=hooks, steps=steps)
    return [estimator.get_variable_value(name) for name in NAMES]


class Dense:
    """Makes sparse gradients dense: TensorFlow's momentum updates only the rows of sparse ones."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def minimize(self, loss, global_step):
        pairs = [
            (None if g is None else tf.convert_to_tensor(g), v)
            for g, v in self.optimizer.compute_gradients(loss)
        ]
        return self.optimizer.apply_gradients(pairs, global_step=global_step)


def assert_near(got, expected, tolerance=1e-5):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize(
    "options",
    [{}, {"sparse_as_dense": True}, {"sparse_as_dense": True, "groups": 2}],
    ids=["plain", "sparse_as_dense", "groups"],
)
def test_training_equals_one_process_on_the_whole_batch(kind, options, tmp_path):
    alone = Dense if options else lambda optimizer: optimizer
    expected = train(kind, alone, tmp_path / "whole", mine=False)
    got = train(
        kind,
        lambda optimizer: hvd.DistributedOptimizer(optimizer, **options),
        tmp_path / "mine",
        mine=True,
    )
    assert_near(got, expected)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_aggregation_over_several_passes(kind, tmp_path):
    expected = train(kind, Dense, tmp_path / "whole", mine=False, rows_of_passes=PASSES)
    got = train(
        kind,
        lambda optimizer: hvd.DistributedOptimizer(
            optimizer,
            backward_passes_per_step=PASSES,
            average_aggregated_gradients=True,
            sparse_as_dense=True,
        ),
        tmp_path / "mine",
        mine=True,
        steps=STEPS * PASSES,
    )
    assert_near(got, expected)


def scaled(optimizer):
    """A dynamic loss scale that begins at 1024 and doubles after four good steps."""
    scale = v1.mixed_precision.DynamicLossScale(2.0**10, increment_period=4)
    return v1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, scale)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("scaling", ["inside", "outside"])
def test_mixed_precision_equals_one_process(kind, scaling, tmp_path):
    def wrap(optimizer):
        if scaling == "inside":
            return hvd.DistributedOptimizer(scaled(optimizer))
        return scaled(hvd.DistributedOptimizer(optimizer))

    expected = train(kind, scaled, tmp_path / "whole", mine=False, activations=tf.float16)
    got = train(kind, wrap, tmp_path / "mine", mine=True, activations=tf.float16)
    assert_near(got, expected, 3e-3)
