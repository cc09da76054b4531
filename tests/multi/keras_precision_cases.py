"""Mixed precision and loss scaling with `horovod.keras`, the same on every backend.

All ranks must take the same decision: to skip a step, or not to.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_reference import (
    BATCH,
    CLOSE_IN_HALF,
    assert_equal_on_all_ranks,
    assert_same,
    doubled_mse,
    fit,
    numbers,
    several_ranks,
    sgd,
    share,
    small_model,
    state,
    train_alone,
    train_together,
    weights,
)

import horovod.keras as hvd


@pytest.fixture
def half_precision():
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


def scaled(optimizer, **options):
    return keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**10, **options)


ORDERS = {
    "scaling inside": lambda **options: hvd.DistributedOptimizer(scaled(sgd()), **options),
    "scaling outside": lambda **options: scaled(hvd.DistributedOptimizer(sgd(), **options)),
    "scaling by compile": lambda **options: hvd.DistributedOptimizer(sgd(), **options),
}


@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize("order", ORDERS)
def test_mixed_precision_trains_like_one_process(order):
    ours = train_together(ORDERS[order]())
    assert_same(ours, train_alone(sgd()), **CLOSE_IN_HALF)
    assert_equal_on_all_ranks(weights(ours), "weights")


@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize("order", ["scaling inside", "scaling outside"])
def test_mixed_precision_with_several_passes_for_one_update(order):
    optimizer = ORDERS[order](backward_passes_per_step=2, average_aggregated_gradients=True)
    ours = train_together(optimizer)
    assert_same(ours, train_alone(sgd(), batch=2 * BATCH), **CLOSE_IN_HALF)


@several_ranks
@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("passes", [1, 2])
def test_an_infinite_gradient_on_one_rank_skips_the_same_step_on_all(order, passes):
    optimizer = ORDERS[order](backward_passes_per_step=passes)
    x, y = numbers(steps=8)
    x, y = share(x), share(y)
    if hvd.rank() == 1:
        x[3 * BATCH // hvd.size()] = np.inf  # in the fourth batch
    model = small_model()
    scales = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            getattr(self.model, "jax_state_sync", lambda: None)()
            scales.append(float(keras.ops.convert_to_numpy(self.model.optimizer.dynamic_scale)))

    fit(model, optimizer, (x, y), BATCH // hvd.size(), callbacks=[Look()])
    begin = scales[0]
    assert scales == [begin] * 3 + [begin / 2] * 5
    assert all(np.isfinite(w).all() for w in weights(model))
    assert_equal_on_all_ranks(weights(model), "weights")
    assert_equal_on_all_ranks(state(model.optimizer)[:2], "state")


def test_an_infinite_gradient_does_not_leak_into_the_next_update():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(sgd()), backward_passes_per_step=2
    )
    x, y = numbers(steps=6)
    x[0] = np.inf  # in the first update, of rank 0
    fit(model, optimizer, [share(x), share(y)], BATCH // hvd.size())
    assert all(np.isfinite(w).all() for w in weights(model))
    reference = small_model()
    fit(
        reference,
        sgd(),
        [a[2 * BATCH :] for a in numbers(steps=6)],
        2 * BATCH,
        loss=doubled_mse,
    )
    assert_same(model, reference)


def float8_model():
    model = small_model()
    model.quantize("float8")
    return model


@several_ranks
def test_scales_of_float8_are_the_largest_of_all_ranks():
    model = float8_model()
    x, y = numbers(steps=2)
    x[:] = 0.25
    if hvd.rank() == 1:
        x[:] = 2.0
    fit(model, hvd.DistributedOptimizer(sgd()), (share(x), share(y)), BATCH // hvd.size())
    assert_equal_on_all_ranks(weights(model), "weights")
    history = keras.ops.convert_to_numpy(model.layers[0].inputs_amax_history)
    assert history.max() == 2.0
    several = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    with pytest.raises(ValueError, match=r"float8.* gradient_accumulation_steps"):
        fit(float8_model(), several, (share(x), share(y)), BATCH // hvd.size())
