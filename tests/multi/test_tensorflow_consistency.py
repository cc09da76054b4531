"""HOROVOD_CHECK_CONSISTENCY_STEPS with TensorFlow: tapes, `tf.function`, graphs of TensorFlow 1, XLA."""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import logging

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.exceptions import HorovodConsistencyError
from horovod.tensorflow import consistency

LAUNCHES = {"main": ["-np 2", "-np 3"], "tensorflow1": ["-np 2"]}

v1 = tf.compat.v1


@pytest.fixture(scope="module", autouse=True)
def _job():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def _every_second_step(monkeypatch):
    monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", "2")
    consistency._of_tapes.clear()


def variables():
    return [
        tf.Variable(tf.ones((2, 3)), name="kernel"),
        tf.Variable(tf.zeros((3,)), name="bias"),
        tf.Variable(tf.zeros((2,), tf.float16), name="half"),
    ]


def step_of(weights, **options):
    def step():
        with tf.GradientTape() as tape:
            y = tf.ones((1, 2)) @ weights[0] + weights[1]
            loss = tf.reduce_sum(y) + tf.cast(tf.reduce_sum(weights[2]), tf.float32)
        tape = hvd.DistributedGradientTape(tape, **options)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient * tf.cast(0.1, gradient.dtype))

    return step


def change(weight, rank=0):
    if hvd.rank() == rank:
        weight.assign(weight + 1)


def test_eager_tapes_compare_what_the_update_before_has_left():
    weights = variables()
    step = step_of(weights)
    for _ in range(3):
        step()
    change(weights[1])
    step()
    with pytest.raises(HorovodConsistencyError) as raised:
        step()
    text = str(raised.value)
    assert text.startswith(
        "After optimizer step 4 parameter 'bias:0' (float32, shape [3], number 2 of 3)"
    )
    assert "No other does." in text


def test_a_broadcast_after_the_first_step_is_in_time(monkeypatch):
    monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", "1")
    weights = variables()
    change(weights[0])
    step = step_of(weights)
    step()
    hvd.broadcast_variables(weights, root_rank=0)
    step()
    step()


def test_tapes_in_a_function_compare_when_it_runs():
    weights = variables()
    step = tf.function(step_of(weights))
    for _ in range(3):
        step()
    change(weights[2], rank=1)
    step()
    with pytest.raises(
        Exception, match=r"ConsistencyError: After optimizer step 4 parameter 'half:0'"
    ):
        step()
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == hvd.size()


def test_sources_that_are_no_variables_are_not_compared():
    for _ in range(4):
        x = tf.constant([1.0 + hvd.rank()])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        hvd.DistributedGradientTape(tape).gradient(y, x)


def test_two_models_are_counted_apart():
    one, other = variables(), [tf.Variable(tf.ones((2, 4))), tf.Variable(tf.zeros((4,)))]
    other.append(tf.Variable(tf.zeros((2,), tf.float16)))
    steps = [step_of(one), step_of(other)]
    change(other[1])
    for step in steps * 2:
        step()
    steps[0]()
    with pytest.raises(HorovodConsistencyError, match=r"shape \[4\], number 2"):
        steps[1]()


def test_local_sources_may_differ():
    weights = variables()
    change(weights[0])
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(weights[0]) + tf.reduce_sum(weights[1])
    tape = hvd.DistributedGradientTape(tape)
    tape.register_local_source(weights[0])
    for _ in range(5):
        tape.gradient(loss, weights[:2])


class Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture
def said():
    handler = Said()
    logging.getLogger("horovod").addHandler(handler)
    yield handler.texts
    logging.getLogger("horovod").removeHandler(handler)


def test_under_xla_it_is_said_once_that_nothing_is_compared(said):
    weights = variables()
    step = tf.function(step_of(weights), jit_compile=True)
    change(weights[0])
    for _ in range(4):
        step()
    texts = [text for text in said if "CONSISTENCY" in text]
    assert len(texts) == (1 if hvd.rank() == 0 else 0)
    assert all("compiled by XLA" in text for text in texts)


# New TensorFlow has no conditionals around variables of the old kind, which several passes would need.
@pytest.mark.parametrize(("use_resource", "passes"), [(True, 1), (False, 1), (True, 2)])
def test_optimizers_of_graphs_compare_after_real_updates(use_resource, passes):
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=tf.ones((3,)), use_resource=use_resource)
        bias = v1.get_variable("b", initializer=tf.ones((2,)), use_resource=use_resource)
        loss = tf.reduce_sum(weight * weight) + tf.reduce_sum(bias)
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=passes
        )
        global_step = v1.train.get_or_create_global_step()
        train_op = optimizer.apply_gradients(
            optimizer.compute_gradients(loss, [weight, bias]), global_step=global_step
        )
        tamper = bias.assign_add([0.0, 1.0])
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            for _ in range(2 * passes):
                session.run(train_op)
            if hvd.rank() == 1:
                session.run(tamper)
            for _ in range(2 * passes - 1):
                session.run(train_op)
            said = (
                r"ConsistencyError: After optimizer step 4 parameter 'b:0' \(float32, shape \[2\]"
            )
            with pytest.raises(Exception, match=said):
                session.run(train_op)
            assert session.run(global_step) == 4 * passes


def test_it_is_off_by_default(monkeypatch):
    monkeypatch.delenv("HOROVOD_CHECK_CONSISTENCY_STEPS")
    weights = variables()
    change(weights[0])
    step = step_of(weights)
    for _ in range(4):
        step()
    assert not consistency._of_tapes
    assert hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.1))._check is None
