"""DistributedOptimizer around optimizers of TensorFlow 1, in graphs and sessions.

Weights after ten steps equal those of one process with the whole batch; the tolerance of 1e-5 allows for
another order of float32 additions. With float16 activations, which have 11 bits, sums differ by one part in a
thousand, and so do the weights.
"""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

LAUNCHES = {"main": ["-np 1", "-np 2", "-np 3"], "tensorflow1": ["-np 2"]}

v1 = tf.compat.v1
ROWS, FEATURES, WORDS, STEPS = 4, 6, 12, 10


@pytest.fixture(scope="module", autouse=True)
def job():
    hvd.init()
    yield
    hvd.shutdown()


def make_optimizer(kind):
    if kind == "adam":
        return v1.train.AdamOptimizer(0.01)
    return v1.train.MomentumOptimizer(0.05, 0.9)


def batch(step, ranks):
    parts = []
    for r in ranks:
        rng = np.random.default_rng([step, r])
        parts.append((rng.integers(0, WORDS, ROWS), rng.normal(0, 1, ROWS).astype(np.float32)))
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def train(
    kind, ranks, wrap, *, passes=1, use_resource=True, divide_sum_by=1, activations=tf.float32
):
    """Returns the weights after `STEPS` updates, each from the rows of `passes` batches."""
    rng = np.random.default_rng(7)

    def weights(name, *shape):
        return v1.get_variable(
            name,
            initializer=rng.normal(0, 0.5, shape).astype(np.float32),
            use_resource=use_resource,
        )

    with tf.Graph().as_default():
        words = v1.placeholder(tf.int64, [None])
        targets = v1.placeholder(tf.float32, [None])
        embedding, first = weights("embedding", WORDS, FEATURES), weights("first", FEATURES, 5)
        second = weights("second", 5, 1)
        unused = weights("unused", 3)
        rows = tf.cast(tf.gather(embedding, words), activations)
        hidden = tf.nn.relu(rows @ tf.cast(first, activations))
        outputs = tf.cast(tf.squeeze(hidden @ tf.cast(second, activations), 1), tf.float32)
        loss = tf.reduce_mean(tf.square(outputs - targets)) / divide_sum_by
        step = v1.train.get_or_create_global_step()
        optimizer = wrap(make_optimizer(kind))
        pairs = optimizer.compute_gradients(loss, [embedding, first, second, unused])
        assert pairs[3][0] is None
        train_op = optimizer.apply_gradients(pairs, global_step=step)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for number in range(STEPS * passes):
                fed = dict(zip((words, targets), batch(number, ranks), strict=True))
                session.run(train_op, fed)
            values = session.run([embedding, first, second, unused])
            return values, int(session.run(step))


class Dense:
    """Makes sparse gradients dense: TensorFlow's momentum updates only the rows of sparse ones."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.apply_gradients = optimizer.apply_gradients

    def compute_gradients(self, *args):
        return [
            (None if g is None else tf.convert_to_tensor(g), v)
            for g, v in self.optimizer.compute_gradients(*args)
        ]


def reference(kind, *, passes=1, dense=False, **options):
    """One process; with several passes each update sees the batches of one window at once."""
    whole = list(range(hvd.size()))
    wrap = Dense if dense else lambda optimizer: optimizer
    if passes == 1:
        return train(kind, whole, wrap, **options)[0]
    original = globals()["batch"]

    def window(number, ranks):
        parts = [original(number * passes + i, ranks) for i in range(passes)]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    globals()["batch"] = window
    try:
        return train(kind, whole, wrap, **options)[0]
    finally:
        globals()["batch"] = original


def assert_near(got, expected, tolerance=1e-5):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize(
    "options",
    [{}, {"sparse_as_dense": True}, {"sparse_as_dense": True, "groups": 2}],
    ids=["plain", "sparse_as_dense", "groups"],
)
def test_training_equals_one_process_on_the_whole_batch(kind, options, use_resource):
    # A single rank has nothing to reduce and its gradients stay as they are.
    expected = reference(kind, use_resource=use_resource, dense=bool(options) and hvd.size() > 1)
    got, step = train(
        kind,
        [hvd.rank()],
        lambda optimizer: hvd.DistributedOptimizer(optimizer, **options),
        use_resource=use_resource,
    )
    assert step == STEPS
    assert_near(got, expected)


def scaled(optimizer):
    """A dynamic loss scale that begins at 1024 and doubles after four good steps."""
    scale = v1.mixed_precision.DynamicLossScale(2.0**10, increment_period=4)
    return v1.mixed_precision.MixedPrecisionLossScaleOptimizer(optimizer, scale)


SCALING = {
    "inside": lambda optimizer: hvd.DistributedOptimizer(scaled(optimizer)),
    "outside": lambda optimizer: scaled(hvd.DistributedOptimizer(optimizer)),
}


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("wrap", SCALING.values(), ids=SCALING)
def test_mixed_precision_equals_one_process(kind, wrap):
    expected = train(kind, list(range(hvd.size())), scaled, activations=tf.float16)
    got = train(kind, [hvd.rank()], wrap, activations=tf.float16)
    assert got[1] == expected[1] == STEPS
    assert_near(got[0], expected[0], 3e-3)


@pytest.mark.parametrize("wrap", SCALING.values(), ids=SCALING)
def test_an_infinite_gradient_on_one_rank_skips_the_same_step_on_all(wrap):
    with tf.Graph().as_default():
        variable = v1.get_variable("v", initializer=1.0)
        factor = v1.placeholder(tf.float32, [])
        step = v1.train.get_or_create_global_step()
        optimizer = wrap(v1.train.GradientDescentOptimizer(0.5))
        train_op = optimizer.minimize(variable * factor, global_step=step)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            values, steps = [], []
            for value in (1.0, np.inf if hvd.rank() == 0 else 1.0, 1.0):
                session.run(train_op, {factor: value})
                values.append(float(session.run(variable)))
                steps.append(int(session.run(step)))
        assert values == [0.5, 0.5, 0.0]
        assert steps == [1, 1, 2]


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("average", [True, False], ids=["mean", "sum"])
def test_aggregation_over_several_passes(kind, average):
    passes = 3
    if average:
        expected = reference(kind, passes=passes, dense=True)
    else:  # the sum of the passes' means is `passes` times the mean of the window
        expected = reference(kind, passes=passes, dense=True, divide_sum_by=1 / passes)
    got, step = train(
        kind,
        [hvd.rank()],
        lambda optimizer: hvd.DistributedOptimizer(
            optimizer,
            backward_passes_per_step=passes,
            average_aggregated_gradients=average,
            sparse_as_dense=True,
        ),
        passes=passes,
    )
    assert step == STEPS * passes  # the counter of steps advances at every pass
    assert_near(got, expected)


def test_a_wrapped_optimizer_answers_for_the_wrapped_one():
    with tf.Graph().as_default():
        variable = v1.get_variable("v", initializer=1.0)
        plain = v1.train.MomentumOptimizer(0.1, 0.9)
        optimizer = hvd.DistributedOptimizer(plain, name="mine")
        assert isinstance(optimizer, v1.train.Optimizer)
        assert optimizer._optimizer is plain
        assert optimizer.get_name() == "mine"
        optimizer.minimize(variable * variable)
        assert optimizer.get_slot_names() == ["momentum"]
        assert optimizer.get_slot(variable, "momentum") is plain.get_slot(variable, "momentum")
        assert optimizer.variables() == plain.variables()


def test_a_local_variable_is_not_reduced():
    with tf.Graph().as_default():
        local = v1.get_variable("local", initializer=1.0)
        shared = v1.get_variable("shared", initializer=1.0)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        optimizer.register_local_var(local)
        pairs = optimizer.compute_gradients((local + shared) * (hvd.rank() + 1.0))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            gradients = session.run({v.op.name: g for g, v in pairs})
        assert gradients["local"] == pytest.approx((hvd.rank() + 1.0) / hvd.size())
        assert gradients["shared"] == pytest.approx((hvd.size() + 1.0) / 2)


def test_indexed_slices_cannot_be_aggregated():
    with tf.Graph().as_default():
        table = v1.get_variable("table", initializer=tf.ones([4, 2]))
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2
        )
        with pytest.raises(ValueError, match="sparse_as_dense=True"):
            optimizer.compute_gradients(tf.reduce_sum(tf.gather(table, [0])))


def test_an_infinite_gradient_does_not_leak_into_the_next_window():
    with tf.Graph().as_default():
        variable = v1.get_variable("v", initializer=1.0)
        factor = v1.placeholder(tf.float32, [])
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(0.0), backward_passes_per_step=2
        )
        pairs = optimizer.compute_gradients(variable * factor)
        train_op = optimizer.apply_gradients(pairs)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            seen = []
            for value in (np.inf, 1.0, 2.0, 3.0):
                seen.append(session.run([pairs[0][0], train_op], {factor: value})[0])
        assert np.isinf(seen[1])
        assert seen[3] == pytest.approx(5.0)


def test_what_is_refused():
    legacy = v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(ValueError, match="once"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(legacy))
    with pytest.raises(ValueError, match="not a dict"):
        hvd.DistributedOptimizer({})
    with pytest.raises(ValueError, match="needs a graph"):
        hvd.DistributedOptimizer(legacy, backward_passes_per_step=2)
    with pytest.raises(ValueError, match="needs op=Average"):
        hvd.DistributedOptimizer(legacy, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(NotImplementedError):
        hvd.DistributedOptimizer(legacy, op=hvd.Adasum)
