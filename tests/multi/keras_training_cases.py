"""Training with `horovod.keras` that gives the same on every backend; test_keras_<backend>.py runs it on one.

Every rank trains on its share of each batch, and, alone with a plain optimizer, on the whole batches.
Afterwards the weights are the same.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_reference import (
    BATCH,
    OPTIMIZERS,
    QUICKLY,
    assert_equal_on_all_ranks,
    assert_same,
    doubled_mse,
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

# --- equality with one process ----------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_are_those_of_one_process(name):
    make = OPTIMIZERS[name]
    ours = train_together(hvd.DistributedOptimizer(make()))
    assert_same(ours, train_alone(make()))
    assert_equal_on_all_ranks(weights(ours), "weights")


@pytest.mark.parametrize(
    "options", [{"groups": 1}, {"groups": 3}, {"gradient_predivide_factor": 2.0}]
)
def test_options_that_change_no_result(options):
    ours = train_together(hvd.DistributedOptimizer(sgd(), **options), **QUICKLY)
    assert_same(ours, train_alone(sgd()))


def test_groups_given_as_lists_leave_the_rest_in_one_group():
    model = small_model()
    groups = [[model.trainable_variables[0], model.trainable_variables[3]]]
    optimizer = hvd.DistributedOptimizer(sgd(), groups=groups)
    ours = train_together(optimizer, lambda: model, **QUICKLY)
    assert_same(ours, train_alone(sgd()))


def test_sum_adds_the_gradients_of_all_ranks():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.02), op=hvd.Sum)
    ours = train_together(optimizer, **QUICKLY)
    plain = keras.optimizers.SGD(0.02 * hvd.size())
    assert_same(ours, train_alone(plain))


def test_compression_costs_only_precision():
    optimizer = hvd.DistributedOptimizer(sgd(), compression=hvd.Compression.fp16)
    ours = train_together(optimizer, **QUICKLY)
    assert_same(ours, train_alone(sgd()), rtol=0.05, atol=0.02)


# --- several passes for one update --------------------------------------------------------------------


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_passes_that_make_one_update_are_one_batch_of_one_process(name, average):
    make = OPTIMIZERS[name]
    optimizer = hvd.DistributedOptimizer(
        make(), backward_passes_per_step=2, average_aggregated_gradients=average
    )
    ours = train_together(optimizer)
    # Two passes of a batch are one of twice the size, if averaged; their sum is twice as much.
    loss = "mse" if average else doubled_mse
    assert_same(ours, train_alone(make(), batch=2 * BATCH, loss=loss))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_accumulation_by_keras_is_one_batch_of_one_process(name):
    make = OPTIMIZERS[name]
    ours = train_together(hvd.DistributedOptimizer(make(gradient_accumulation_steps=2)))
    assert_same(ours, train_alone(make(), batch=2 * BATCH))


def test_iterations_count_every_pass_and_only_the_last_updates():
    optimizer = hvd.DistributedOptimizer(sgd(), backward_passes_per_step=3)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            getattr(self.model, "jax_state_sync", lambda: None)()
            seen.append(
                (int(optimizer.iterations), int(optimizer._agg_helper.counter), weights(model))
            )

    model = small_model()
    start = weights(model)
    fit(
        model,
        optimizer,
        [share(a) for a in numbers(steps=6)],
        BATCH // hvd.size(),
        callbacks=[Look()],
    )
    assert [iterations for iterations, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert [counter for _, counter, _ in seen] == [1, 2, 0, 1, 2, 0]
    same = [all(np.array_equal(a, b) for a, b in zip(w, start, strict=True)) for _, _, w in seen]
    assert same == [True, True, False, False, False, False]
    for first, later in [(2, 3), (3, 4)]:
        for a, b in zip(seen[first][2], seen[later][2], strict=True):
            np.testing.assert_array_equal(a, b)


def test_passes_of_horovod_and_accumulation_of_keras_exclude_each_other():
    with pytest.raises(ValueError, match="use one of them"):
        hvd.DistributedOptimizer(sgd(gradient_accumulation_steps=2), backward_passes_per_step=2)


# --- what Keras does with reduced gradients -----------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": 0.05},
        {"global_clipnorm": 0.1},
        {"clipvalue": 0.02},
        {"weight_decay": 0.05},
        {"loss_scale_factor": 64.0},
    ],
    ids=str,
)
def test_keras_clips_and_decays_what_has_been_reduced(options):
    ours = train_together(hvd.DistributedOptimizer(sgd(**options)), **QUICKLY)
    assert_same(ours, train_alone(sgd(**options)))


@pytest.mark.parametrize("passes", [1, 2])
def test_moving_averages_are_those_of_one_process(passes):
    options = {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2}
    optimizer = hvd.DistributedOptimizer(
        sgd(**options), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    ours = train_together(optimizer)
    assert_same(ours, train_alone(sgd(**options), batch=passes * BATCH))


# --- sparse and missing gradients ----------------------------------------------------------------------


# Keras squares the slices of one row before it adds them up, so that with TensorFlow Adam makes something
# else of a sparse gradient than of the same gradient made dense. SGD does not.
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_an_embedding_and_a_variable_without_gradient(name):
    make = OPTIMIZERS[name]
    options = {"sparse_as_dense": name == "SGD"}
    ours = train_together(hvd.DistributedOptimizer(make(), **options), embedding_model, words)
    assert_same(ours, train_alone(make(), embedding_model, words))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_an_embedding_with_several_passes_for_one_update():
    optimizer = hvd.DistributedOptimizer(
        sgd(),
        sparse_as_dense=True,
        backward_passes_per_step=2,
        average_aggregated_gradients=True,
    )
    ours = train_together(optimizer, embedding_model, words)
    assert_same(ours, train_alone(sgd(), embedding_model, words, batch=2 * BATCH))
