"""`horovod.tensorflow.keras` with Keras 2 in graphs of TensorFlow 1, where a session trains."""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

tf.compat.v1.disable_eager_execution()

import horovod.tensorflow.keras as hvd  # noqa: E402

LAUNCHES = {"tensorflow1": ["-np 2"]}

keras = tf.keras
BATCH = 8
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9),
    "Adam": lambda: keras.optimizers.legacy.Adam(0.02, epsilon=1e-4),
}


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def numbers():
    x = np.random.default_rng(3).normal(size=(10 * BATCH, 5)).astype("float32")
    return x, (x[:, :3] * x[:, 1:4] + 0.5).astype("float32")


def share(array):
    parts = array.reshape(-1, hvd.size(), BATCH // hvd.size(), *array.shape[1:])
    return np.ascontiguousarray(parts[:, hvd.rank()].reshape(-1, *array.shape[1:]))


def train(optimizer, data, batch, callbacks=(), start=0.0):
    model = keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )
    random = np.random.default_rng(1)
    model.set_weights([start + 0.3 * random.normal(size=w.shape) for w in model.get_weights()])
    model.compile(optimizer, "mse")
    options = {"shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
    model.fit(*data, batch_size=batch, **options)
    return model


def assert_equal_on_all_ranks(values):
    for value in values:
        everywhere = hvd.allgather(np.asarray(value)[None])
        assert (everywhere == everywhere[:1]).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_are_those_of_one_process(name):
    make = OPTIMIZERS[name]
    data = [share(array) for array in numbers()]
    ours = train(hvd.DistributedOptimizer(make()), data, BATCH // hvd.size())
    reference = train(make(), numbers(), BATCH)
    for a, b in zip(ours.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
    assert_equal_on_all_ranks(ours.get_weights())


def test_callbacks_give_all_ranks_the_same():
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=1),
    ]
    data = [share(array) for array in numbers()]
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["SGD"]())
    model = train(optimizer, data, BATCH // hvd.size(), callbacks, start=float(hvd.rank()))
    assert_equal_on_all_ranks(model.get_weights())
    assert callbacks[2].steps_per_epoch == 10


def test_global_variables_are_broadcast_by_an_op():
    variable = tf.Variable(float(hvd.rank()))
    session = tf.compat.v1.keras.backend.get_session()
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(hvd.broadcast_global_variables(1))
    assert session.run(variable) == 1.0


def test_values_are_arrays():
    assert isinstance(hvd.allreduce(np.float32(hvd.rank())), (np.ndarray, np.floating))
    assert hvd.allreduce(np.float32(hvd.rank())) == 0.5


def test_several_passes_for_one_update_are_refused():
    with pytest.raises(ValueError, match="needs eager mode"):
        hvd.DistributedOptimizer(OPTIMIZERS["SGD"](), backward_passes_per_step=2)
