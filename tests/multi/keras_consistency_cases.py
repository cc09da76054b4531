"""HOROVOD_CHECK_CONSISTENCY_STEPS with Keras: the same on every backend; test_keras_<backend>_consistency.py.

Out of compiled functions the error comes as one of the backend's, with the same text in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import keras
import numpy as np
import pytest
from keras_reference import BACKEND, BATCH, fit, numbers, sgd, share, small_model

import horovod.keras as hvd
from horovod._keras.state import bring_up_to_date
from horovod.common.exceptions import HorovodConsistencyError

LOOPS = [False] if BACKEND == "jax" else [False, True]


@pytest.fixture(autouse=True)
def every_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", "2")


class Before(keras.callbacks.Callback):
    """Calls a function before each batch, counted from 1."""

    def __init__(self, function: Callable[[int], None]) -> None:
        super().__init__()
        self.function = function
        self.batches = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.batches += 1
        bring_up_to_date(self.model)
        self.function(self.batches)


def train(model, optimizer, steps, before=lambda step: None, **options):
    callback = Before(before)
    data = [share(a) for a in numbers(steps=steps)]
    try:
        fit(model, optimizer, data, BATCH // hvd.size(), callbacks=[callback], **options)
    finally:
        train.batches = callback.batches


def change(variable, rank=0):
    if hvd.rank() == rank:
        variable.assign(np.asarray(keras.ops.convert_to_numpy(variable)) + 0.5)


@contextmanager
def told(*parts: str) -> Iterator[None]:
    """The block fails on all ranks, with these parts in the text."""
    with pytest.raises(Exception) as raised:
        yield
    text = str(raised.value)
    for part in ("ConsistencyError" if raised.type is not HorovodConsistencyError else "", *parts):
        assert part in text, text


@pytest.mark.parametrize("run_eagerly", LOOPS)
def test_equal_variables_raise_nothing(run_eagerly):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd())
    train(model, optimizer, 6, run_eagerly=run_eagerly)
    assert optimizer._hvd.check.steps == 6


@pytest.mark.parametrize("run_eagerly", LOOPS)
def test_the_first_differing_variable_is_named_at_the_next_check(run_eagerly):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd())

    def tamper(step):
        if step == 3:
            change(model.trainable_variables[1])
            change(model.trainable_variables[3])

    path = model.trainable_variables[1].path
    said = f"After optimizer step 4 parameter '{path}' (float32, shape [6], number 2 of 4) differs"
    with told(said, "on rank 0", "on rank 1", "So does 1 more."):
        train(model, optimizer, 8, tamper, run_eagerly=run_eagerly)
    # JAX runs ahead of its callbacks by a batch or so.
    assert train.batches == 4 or BACKEND == "jax"


def test_the_job_goes_on_after_the_error():
    model = small_model()
    change(model.trainable_variables[0])
    with told("After optimizer step 2 "):
        train(model, hvd.DistributedOptimizer(sgd()), 2)
    model = small_model()
    train(model, hvd.DistributedOptimizer(sgd()), 2)


def test_passes_that_update_nothing_do_not_count():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    change(model.trainable_variables[0])
    with told("After optimizer step 2 "):
        train(model, optimizer, 8)
    assert train.batches == 4 or BACKEND == "jax"


def test_passes_that_keras_accumulates_do_not_count():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=2))
    train(model, optimizer, 8)
    assert optimizer._hvd.check.steps == 4
    model = small_model()
    change(model.trainable_variables[0])
    with told("After optimizer step 2 "):
        train(model, hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=2)), 8)


def test_steps_that_a_loss_scale_optimizer_skips_do_not_count():
    model = small_model()
    inner = hvd.DistributedOptimizer(sgd())
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0)
    x, y = numbers(steps=4)
    x[2 * BATCH : 3 * BATCH][hvd.rank() :: 2] *= 1.0 if hvd.rank() else np.inf
    model.compile(scaled, "mse", jit_compile=False)
    model.fit(share(x), share(y), BATCH // hvd.size(), shuffle=False, verbose=0)
    bring_up_to_date(model)
    assert inner._hvd.check.steps == 3


def test_local_variables_may_differ():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd())
    optimizer.register_local_var(model.trainable_variables[0])
    optimizer.register_local_var(model.trainable_variables[1])
    change(model.trainable_variables[1])
    model.trainable_variables[2].assign(model.trainable_variables[2] * 0)
    optimizer.learning_rate = 0.0
    train(model, optimizer, 2)
    change(model.trainable_variables[3])
    with told("number 2 of 2"):
        train(model, optimizer, 2)


def test_names_may_differ_and_shapes_may_not():
    if hvd.rank() == 1:
        small_model()  # counts the names of the next one on
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    for variable in model.trainable_variables:
        variable.assign(variable * 0)
    optimizer = hvd.DistributedOptimizer(sgd())
    train(model, optimizer, 2)
    assert optimizer._hvd.check.steps == 2


def test_it_is_off_by_default(monkeypatch):
    monkeypatch.delenv("HOROVOD_CHECK_CONSISTENCY_STEPS")
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd())
    assert optimizer._hvd.check is None
    change(model.trainable_variables[0])
    train(model, optimizer, 4)
