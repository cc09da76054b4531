"""`horovod.tensorflow.keras` with Keras 2: its optimizers, and those that it calls legacy.

As with Keras 3, weights after ten steps are those of one process with the whole batches. Float32 sums are in
another order, which costs two of its seven digits in ten steps with momentum.
"""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd

LAUNCHES = {"tensorflow1": ["-np 2"]}

keras = tf.keras
legacy = keras.optimizers.legacy
BATCH = 8
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.02, epsilon=1e-4, jit_compile=False),
    "legacy SGD": lambda: legacy.SGD(0.1, momentum=0.9),
    "legacy Adam": lambda: legacy.Adam(0.02, epsilon=1e-4),
}


def small_model():
    keras.utils.set_random_seed(7)
    return keras.Sequential(
        [
            keras.layers.Input((5,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.Dense(3, dtype="float32"),
        ]
    )


def numbers(steps=10):
    x = np.random.default_rng(3).normal(size=(steps * BATCH, 5)).astype("float32")
    return x, (x[:, :3] * x[:, 1:4] + 0.5).astype("float32")


def share(array):
    parts = array.reshape(-1, hvd.size(), BATCH // hvd.size(), *array.shape[1:])
    return np.ascontiguousarray(parts[:, hvd.rank()].reshape(-1, *array.shape[1:]))


def train(optimizer, data=None, batch=None, callbacks=(), epochs=1, **compiling):
    model = small_model()
    model.compile(optimizer, "mse", **compiling)
    data = data or [share(array) for array in numbers()]
    options = {"batch_size": batch or BATCH // hvd.size(), "epochs": epochs}
    model.fit(*data, shuffle=False, verbose=0, callbacks=list(callbacks), **options)
    return model


def train_alone(optimizer, batch=BATCH, **options):
    return train(optimizer, numbers(), batch, run_eagerly=True, **options)


def assert_same(model, reference, **tolerance):
    for a, b in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or CLOSE))


def assert_equal_on_all_ranks(values):
    for value in values:
        everywhere = hvd.allgather(np.asarray(value)[None]).numpy()
        assert (everywhere == everywhere[:1]).all()


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ten_steps_are_those_of_one_process(name, eagerly):
    make = OPTIMIZERS[name]
    ours = train(hvd.DistributedOptimizer(make()), run_eagerly=eagerly)
    assert_same(ours, train_alone(make()))
    assert_equal_on_all_ranks(ours.get_weights())


@pytest.mark.parametrize("name", ["SGD", "legacy SGD"])
def test_passes_that_make_one_update_are_one_batch_of_one_process(name):
    make = OPTIMIZERS[name]
    optimizer = hvd.DistributedOptimizer(
        make(), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    ours = train(optimizer)
    assert_same(ours, train_alone(make(), 2 * BATCH))
    assert int(optimizer.iterations) == 10
    assert int(optimizer._agg_helper.counter) == 0


@pytest.mark.parametrize(
    "options", [{"clipnorm": 0.05}, {"use_ema": True, "ema_momentum": 0.7}], ids=str
)
def test_keras_clips_and_averages_what_has_been_reduced(options):
    def make():
        return keras.optimizers.SGD(0.1, momentum=0.9, **options)

    assert_same(train(hvd.DistributedOptimizer(make())), train_alone(make()))


@pytest.fixture
def half_precision():
    keras.mixed_precision.set_global_policy("mixed_float16")
    yield
    keras.mixed_precision.set_global_policy("float32")


def scaled(optimizer):
    return keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=2.0**10)


ORDERS = {
    "scaling inside": lambda optimizer, **options: hvd.DistributedOptimizer(
        scaled(optimizer), **options
    ),
    "scaling outside": lambda optimizer, **options: scaled(
        hvd.DistributedOptimizer(optimizer, **options)
    ),
    "scaling by compile": lambda optimizer, **options: hvd.DistributedOptimizer(
        optimizer, **options
    ),
}


@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["SGD", "legacy SGD"])
def test_an_infinite_gradient_on_one_rank_skips_the_same_step_on_all(order, name):
    make = OPTIMIZERS[name]
    x, y = (share(array) for array in numbers())
    if hvd.rank() == 1:
        x[3 * BATCH // hvd.size()] = np.inf
    model = train(ORDERS[order](make()), (x, y))
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert_equal_on_all_ranks(model.get_weights())
    assert_equal_on_all_ranks([model.optimizer.loss_scale, model.optimizer.iterations])
    reference = small_model()
    reference.compile(make(), "mse")
    good = [np.concatenate([a[: 3 * BATCH], a[4 * BATCH :]]) for a in numbers()]
    reference.fit(*good, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(model, reference, rtol=2e-2, atol=2e-3)


@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize("name", ["SGD", "legacy SGD"])
def test_several_passes_around_loss_scaling(name):
    make = OPTIMIZERS[name]
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
    ours = train(ORDERS["scaling inside"](make(), **options))
    assert_same(ours, train_alone(make(), 2 * BATCH), rtol=2e-2, atol=2e-3)
    with pytest.raises(ValueError, match="wrap the other way round"):
        train(ORDERS["scaling outside"](make(), **options), run_eagerly=True)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_computed_by_the_optimizer_are_reduced_once(name):
    ours, whole = small_model(), small_model()
    optimizer, plain = hvd.DistributedOptimizer(OPTIMIZERS[name]()), OPTIMIZERS[name]()
    x, y = numbers(1)
    for model, each, data in ((ours, optimizer, (share(x), share(y))), (whole, plain, (x, y))):

        def loss(model=model, data=data):
            return tf.reduce_mean(tf.square(model(data[0]) - data[1]))

        for _ in range(3):
            each.minimize(loss, model.trainable_variables)
    assert_same(ours, whole)
    with tf.GradientTape() as tape:
        value = tf.reduce_mean(tf.square(ours(share(x)) - share(y)))
    compute = getattr(optimizer, "compute_gradients", optimizer._compute_gradients)
    pairs = compute(value, ours.trainable_variables, tape=tape)
    assert_equal_on_all_ranks([gradient for gradient, _ in pairs])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("form", ["model.keras", "model.h5", "model"])
def test_a_saved_model_loads_without_and_with_horovod(tmp_path, name, form):
    model = train(hvd.DistributedOptimizer(OPTIMIZERS[name]()))
    path = str(tmp_path / form)
    model.save(path)
    plain = keras.models.load_model(path)
    assert not hasattr(plain.optimizer, "_hvd_reduction")
    assert type(plain.optimizer) is type(OPTIMIZERS[name]())
    again = hvd.load_model(path)
    assert type(again.optimizer).__module__ == "horovod._keras"
    assert_same(plain, model)
    if form == "model" or (form == "model.keras" and name.startswith("legacy")):
        return  # Keras 2 does not restore the state of an optimizer from these
    data = [share(array) for array in numbers()]
    for each in (model, again):
        each.fit(*data, batch_size=BATCH // hvd.size(), shuffle=False, verbose=0)
    assert_same(again, model)


class Mine(keras.optimizers.SGD):
    """A class that Keras does not know."""


def test_a_class_of_ones_own_is_saved_and_loaded(tmp_path):
    path = str(tmp_path / "model.keras")
    train(hvd.DistributedOptimizer(Mine(0.1))).save(path)
    assert type(keras.models.load_model(path).optimizer) is Mine
    assert isinstance(hvd.load_model(path, custom_optimizers=[Mine]).optimizer, Mine)


def test_callbacks():
    rates = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            rates.append(logs["lr"])

        def on_train_batch_end(self, batch, logs=None):
            assert_equal_on_all_ranks(self.model.get_weights())

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2),
        Look(),
    ]
    for make in (OPTIMIZERS["SGD"], OPTIMIZERS["legacy SGD"]):
        rates.clear()
        model = train(hvd.DistributedOptimizer(make()), callbacks=callbacks, epochs=3)
        size = hvd.size()
        np.testing.assert_allclose(rates, [0.1 / size * ((size - 1) / 2 + 1), 0.1, 0.1], rtol=1e-6)
        assert float(keras.backend.get_value(model.optimizer.momentum)) == pytest.approx(0.9)
    assert hvd.callbacks.BestModelCheckpoint(save_weights_only=True).filepath is None


@pytest.mark.parametrize("name", ["SGD", "legacy SGD"])
def test_momentum_is_corrected_where_the_rate_changes(name):
    make = OPTIMIZERS[name]
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.2**epoch)
    ours = train(hvd.DistributedOptimizer(make()), callbacks=[schedule], epochs=2)
    optimizer, reference = keras.optimizers.SGD(0.1, momentum=0.9), small_model()
    reference.compile(optimizer, "mse")
    reference.fit(*numbers(), batch_size=BATCH, shuffle=False, verbose=0)
    optimizer.learning_rate = 0.02
    for velocity in optimizer.momentums:
        velocity.assign(velocity * 0.2)
    reference.fit(*numbers(), batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(ours, reference)


def test_the_class_and_the_way_to_it():
    for make in OPTIMIZERS.values():
        plain = make()
        optimizer = hvd_tf.DistributedOptimizer(plain, groups=1)  # finds the Keras door
        assert isinstance(optimizer, type(plain))
        assert type(optimizer).__module__ == "horovod._keras"
        assert type(optimizer).__name__ == type(plain).__name__
        assert optimizer.variables() == optimizer.variables
        again = type(optimizer).from_config(optimizer.get_config())
        assert again._hvd.options.groups == 1
        for wrapped in (optimizer, scaled(optimizer)):
            with pytest.raises(ValueError, match="already"):
                hvd.DistributedOptimizer(wrapped)
    with pytest.raises(ValueError, match=r"needs an optimizer of tf\.keras"):
        hvd.DistributedOptimizer("sgd")
