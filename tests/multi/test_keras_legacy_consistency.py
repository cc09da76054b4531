"""HOROVOD_CHECK_CONSISTENCY_STEPS with `horovod.tensorflow.keras` and Keras 2, new and legacy optimizers."""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow.keras as hvd

LAUNCHES = {"tensorflow1": ["-np 2"]}

keras = tf.keras
legacy = keras.optimizers.legacy
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, jit_compile=False),
    "legacy SGD": lambda: legacy.SGD(0.1, momentum=0.9),
}
X = np.arange(48, dtype=np.float32).reshape(16, 3) / 50


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def _every_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", "2")


def small_model():
    keras.utils.set_random_seed(7)
    return keras.Sequential(
        [keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)]
    )


def train(model, optimizer, steps, before=lambda step: None, **options) -> int:
    """Returns how many batches were begun."""
    begun = 0

    class Before(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            nonlocal begun
            begun += 1
            before(begun)

    model.compile(optimizer, "mse", **options)
    x = X[: 2 * steps]
    model.fit(
        x, x[:, :2] + hvd.rank(), batch_size=2, shuffle=False, verbose=0, callbacks=[Before()]
    )
    return begun


def change(variable, rank=0):
    if hvd.rank() == rank:
        variable.assign(variable + 0.5)


def tampering(model):
    def tamper(step):
        if step == 3:
            change(model.trainable_variables[1])

    return tamper


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equal_variables_raise_nothing(name, eagerly):
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name]())
    train(small_model(), optimizer, 6, run_eagerly=eagerly)
    assert optimizer._hvd.check.steps == 6


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_differing_variable_is_named_at_the_next_check(name, eagerly):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name]())
    with pytest.raises(Exception, match=r"After optimizer step 4 parameter '.*bias.*number 2 of 4"):
        train(model, optimizer, 8, tampering(model), run_eagerly=eagerly)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_passes_that_update_nothing_do_not_count(name):
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[name](), backward_passes_per_step=2)
    train(small_model(), optimizer, 6)
    assert optimizer._hvd.check.steps == 3


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_a_loss_scale_optimizer_are_compared_and_skipped_ones_do_not_count(name):
    model = small_model()
    inner = hvd.DistributedOptimizer(OPTIMIZERS[name]())
    scaled = keras.mixed_precision.LossScaleOptimizer(inner)
    x = X.copy()
    x[2:4] *= 1.0 if hvd.rank() else np.inf
    model.compile(scaled, "mse")
    model.fit(x, x[:, :2], batch_size=2, shuffle=False, verbose=0, steps_per_epoch=4)
    assert inner._hvd.check.steps == 3
    change(model.trainable_variables[1])
    with pytest.raises(Exception, match="ConsistencyError: After optimizer step 4 "):
        model.fit(X, X[:, :2], batch_size=2, shuffle=False, verbose=0, steps_per_epoch=4)


def test_it_is_off_by_default(monkeypatch):
    monkeypatch.delenv("HOROVOD_CHECK_CONSISTENCY_STEPS")
    model = small_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["SGD"]())
    assert optimizer._hvd.check is None
    assert train(model, optimizer, 6, tampering(model)) == 6
