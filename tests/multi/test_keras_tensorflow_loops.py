"""`horovod.keras` with Keras 3 on TensorFlow: compiled functions and loops of one's own."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_reference import (
    BATCH,
    assert_equal_on_all_ranks,
    assert_same,
    embedding_model,
    fit,
    numbers,
    sgd,
    share,
    small_model,
    train_alone,
    train_together,
    weights,
    words,
)

import horovod.keras as hvd
import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd_tf_keras

LAUNCHES = ["-np 2"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize(
    "compiling",
    [{"jit_compile": True}, {"steps_per_execution": 3}, {"run_eagerly": True}],
    ids=str,
)
def test_however_keras_runs_its_step(compiling, passes):
    optimizer = hvd.DistributedOptimizer(
        sgd(), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    ours = train_together(optimizer, **compiling)
    assert_same(ours, train_alone(sgd(), batch=passes * BATCH))


def test_a_shorter_last_batch_is_traced_again():
    def data():
        return [array[:-4] for array in numbers()]

    model, reference = small_model(), small_model()
    x, y = data()
    rows = np.concatenate([np.arange(9 * BATCH).reshape(9, 2, 4)[:, hvd.rank()].ravel()])
    last = np.arange(9 * BATCH, len(x)).reshape(2, 2)[hvd.rank()]
    mine = np.concatenate([rows, last])
    fit(model, hvd.DistributedOptimizer(sgd()), (x[mine], y[mine]), BATCH // 2)
    fit(reference, sgd(), (x, y), BATCH)
    assert_same(model, reference)


def loop(model, optimizer, data, batch, step_of, compiled=True):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        step_of(optimizer, tape, loss, model.trainable_variables)

    function = tf.function(step) if compiled else step
    for begin in range(0, len(data[0]), batch):
        function(*(tf.constant(array[begin : begin + batch]) for array in data))
    return model


def by_gradients(optimizer, tape, loss, variables):
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def by_tensorflow_variables(optimizer, tape, loss, variables):
    variables = [variable.value for variable in variables]
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def by_compute_gradients(optimizer, tape, loss, variables):
    # Reduced gradients can be looked at and changed before they are applied.
    pairs = optimizer.compute_gradients(loss, variables, tape=tape)
    optimizer.apply_gradients([(gradient * 1.0, variable) for gradient, variable in pairs])


def by_reduced_gradients(optimizer, tape, loss, variables):
    reduced = optimizer._allreduce(tape.gradient(loss, variables), variables)
    optimizer.apply_gradients(
        zip(reduced, variables, strict=True), experimental_aggregate_gradients=False
    )


@pytest.mark.parametrize("compiled", [True, False], ids=["function", "eager"])
@pytest.mark.parametrize(
    "step_of", [by_gradients, by_tensorflow_variables, by_compute_gradients, by_reduced_gradients]
)
def test_gradients_are_reduced_once_in_a_loop_of_ones_own(step_of, compiled):
    data = [share(array) for array in numbers()]
    # A sum: one that is taken twice is not the same any more.
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), op=hvd.Sum)
    ours = loop(small_model(), optimizer, data, BATCH // 2, step_of, compiled)
    plain = keras.optimizers.SGD(0.1)
    assert_same(ours, loop(small_model(), plain, numbers(), BATCH, by_gradients))


def test_compute_gradients_takes_a_function_and_scales_the_loss():
    x, y = (share(array) for array in numbers(steps=1))
    for optimizer in (
        hvd.DistributedOptimizer(sgd()),
        hvd.DistributedOptimizer(sgd(loss_scale_factor=8.0)),
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(sgd())),
    ):
        model = small_model()

        def loss(model=model):
            return tf.reduce_mean(tf.square(model(x) - y))

        for _ in range(3):
            pairs = optimizer.compute_gradients(loss, lambda m=model: m.trainable_variables)
            assert_equal_on_all_ranks([gradient for gradient, _ in pairs], "gradients")
            optimizer.apply_gradients(pairs)
        reference = small_model()
        fit(reference, sgd(), numbers(steps=1), BATCH, epochs=3)
        assert_same(model, reference)
    with pytest.raises(ValueError, match="needs tape="):
        optimizer.compute_gradients(tf.constant(1.0), model.trainable_variables)


def test_two_optimizers_in_one_function():
    models = [small_model(), small_model()]
    optimizers = [hvd.DistributedOptimizer(sgd()) for _ in models]
    x, y = (share(array) for array in numbers())

    @tf.function
    def step(x, y):
        with tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_mean(tf.square(model(x) - y)) for model in models]
        for model, optimizer, loss in zip(models, optimizers, losses, strict=True):
            by_gradients(optimizer, tape, loss, model.trainable_variables)

    for begin in range(0, len(x), BATCH // 2):
        step(x[begin : begin + BATCH // 2], y[begin : begin + BATCH // 2])
    for model in models:
        assert_same(model, train_alone(sgd()))


def test_sparse_gradients_cannot_be_summed_over_passes():
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="sparse_as_dense=True"):
        fit(embedding_model(), optimizer, words(), BATCH, run_eagerly=True)


def test_variables_of_a_multi_optimizer_are_reduced_together():
    def make():
        choice = keras.optimizers.OptimizerMap(sgd(), {".*bias": keras.optimizers.Adam(0.01)})
        return keras.optimizers.MultiOptimizer(choice)

    reference = small_model()
    fit(reference, make(), numbers(), BATCH)
    assert_same(train_together(hvd.DistributedOptimizer(make())), reference)
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        hvd.DistributedOptimizer(make(), backward_passes_per_step=2)


def test_the_doors_of_tensorflow_lead_here():
    for door in (hvd_tf, hvd_tf_keras):
        optimizer = door.DistributedOptimizer(
            sgd(), backward_passes_per_step=2, average_aggregated_gradients=True, groups=1
        )
        assert type(optimizer).__module__ == "horovod._keras"
        assert_same(train_together(optimizer), train_alone(sgd(), batch=2 * BATCH))
        with pytest.raises(ValueError, match="already"):
            door.DistributedOptimizer(optimizer)
    assert issubclass(hvd_tf_keras.callbacks.MetricAverageCallback, tf.keras.callbacks.Callback)
    checkpoint = hvd_tf_keras.callbacks.BestModelCheckpoint(save_weights_only=True)
    assert (checkpoint.filepath, checkpoint.save_weights_only) == (None, True)
    assert float(hvd_tf_keras.allreduce(1.0, average=False)) == 2.0
    with pytest.raises(ValueError, match=r"needs an optimizer of tf\.keras"):
        hvd_tf_keras.DistributedOptimizer("sgd")


def test_get_gradients_in_a_graph():
    optimizer = hvd.DistributedOptimizer(sgd())
    variable = tf.Variable(3.0)

    @tf.function
    def gradients():
        return optimizer.get_gradients(variable * float(1 + hvd.rank()), [variable])

    assert [float(gradient) for gradient in gradients()] == [1.5]


def test_weights_are_equal_bit_by_bit_on_all_ranks():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01), groups=2)
    assert_equal_on_all_ranks(weights(train_together(optimizer, jit_compile=True)), "weights")
