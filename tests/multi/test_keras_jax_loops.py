"""`horovod.keras` with Keras 3 on JAX: compiled or not, and loops of one's own."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras_reference import (
    BATCH,
    assert_equal_on_all_ranks,
    assert_same,
    numbers,
    sgd,
    share,
    small_model,
    train_alone,
    train_together,
)

import horovod.keras as hvd

LAUNCHES = ["-np 2"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize(
    "compiling",
    [{"jit_compile": False}, {"steps_per_execution": 3}, {"run_eagerly": True}],
    ids=str,
)
def test_however_keras_runs_its_step(compiling, passes):
    optimizer = hvd.DistributedOptimizer(
        sgd(), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    ours = train_together(optimizer, **compiling)
    assert_same(ours, train_alone(sgd(), batch=passes * BATCH))


def gradient_function(model):
    def loss(trainable, rest, x, y):
        predicted, rest = model.stateless_call(trainable, rest, x)
        return jnp.mean((predicted - y) ** 2)

    return jax.grad(loss)


def batches():
    x, y = (share(array) for array in numbers())
    for begin in range(0, len(x), BATCH // 2):
        yield x[begin : begin + BATCH // 2], y[begin : begin + BATCH // 2]


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("scaling", [False, True])
def test_stateless_apply_in_a_compiled_loop(passes, scaling):
    model = small_model()
    plain = keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=1.0) if scaling else sgd()
    optimizer = hvd.DistributedOptimizer(
        plain, backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    optimizer.build(model.trainable_variables)
    gradients = gradient_function(model)

    @jax.jit
    def step(trainable, rest, slots, x, y):
        return optimizer.stateless_apply(slots, gradients(trainable, rest, x, y), trainable)

    trainable = [v.value for v in model.trainable_variables]
    rest = [v.value for v in model.non_trainable_variables]
    slots = [v.value for v in optimizer.variables]
    for x, y in batches():  # dispatched one after the other, without waiting
        trainable, slots = step(trainable, rest, slots, x, y)
    for variable, value in zip(model.trainable_variables, trainable, strict=True):
        variable.assign(value)
    assert_same(model, train_alone(sgd(), batch=passes * BATCH))


@pytest.mark.parametrize("passes", [1, 2])
def test_apply_outside_of_compiled_code(passes):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    gradients = jax.jit(gradient_function(model))
    rest = [v.value for v in model.non_trainable_variables]
    for x, y in batches():
        trainable = [v.value for v in model.trainable_variables]
        optimizer.apply(gradients(trainable, rest, x, y), model.trainable_variables)
    assert_same(model, train_alone(sgd(), batch=passes * BATCH))
    assert int(optimizer.iterations) == 10


def test_apply_with_several_passes_cannot_be_compiled():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    optimizer.build(model.trainable_variables)
    state = [*model.trainable_variables, *optimizer.variables]

    @jax.jit
    def step(values, gradients):
        mapping = list(zip(state, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            optimizer.apply(gradients)

    zeros = [jnp.zeros(v.shape) for v in model.trainable_variables]
    with pytest.raises(NotImplementedError, match=r"call optimizer\.stateless_apply"):
        step([v.value for v in state], zeros)


def test_ranks_with_different_gradients_are_told():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd())
    gradients = [jnp.ones(v.shape) for v in model.trainable_variables]
    if hvd.rank() == 1:
        gradients[1] = None
    with pytest.raises(ValueError, match="Ranks have different gradients"):
        optimizer.apply(gradients, model.trainable_variables)


def test_half_types_travel_as_they_are():
    optimizer = hvd.DistributedOptimizer(sgd())
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        variable = keras.Variable(np.zeros(3), dtype=dtype)
        gradient = jnp.full(3, 1.5 + hvd.rank(), dtype)
        (reduced,) = jax.jit(lambda g, v=variable: optimizer._allreduce([g], [v]))(gradient)
        assert reduced.dtype == dtype
        np.testing.assert_array_equal(np.asarray(reduced, np.float32), 2.0)


def test_large_gradients_in_compiled_code():
    optimizer = hvd.DistributedOptimizer(sgd())
    variables = [keras.Variable(np.zeros((1000, 1000), "float32")) for _ in range(4)]

    @jax.jit
    def step(arrays):
        arrays = [jnp.tanh(array @ array) for array in arrays]
        return optimizer._allreduce(arrays, variables)

    arrays = [jnp.full((1000, 1000), 0.01 * (1 + hvd.rank()), jnp.float32)] * 4
    for _ in range(10):
        arrays = step(arrays)
    assert_equal_on_all_ranks([jnp.sum(array) for array in arrays], "sums")
