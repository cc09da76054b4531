"""Models, data and training loops of the tests of `horovod.keras`, together and alone."""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest

import horovod.keras as hvd

BACKEND = keras.backend.backend()
QUICKLY = {"run_eagerly": BACKEND != "jax"}  # for few steps; JAX compiles every operation by itself
STEPS = 10
BATCH = 8

# Sums are in another order: half a batch each, then the ranks. Float32 keeps about seven digits, ten steps of
# momentum lose two of them. Adam divides by small numbers, so it has a larger epsilon here than usual.
CLOSE = {"rtol": 2e-5, "atol": 2e-6}
# In mixed_float16 a gradient is summed over the batch with eleven bits.
CLOSE_IN_HALF = {"rtol": 2e-2, "atol": 2e-3}


def sgd(**options):
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


def adam(**options):
    return keras.optimizers.Adam(0.02, epsilon=1e-4, **options)


OPTIMIZERS = {"SGD": sgd, "Adam": adam}


def small_model():
    keras.utils.set_random_seed(7)
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )


class WithSpareVariable(keras.layers.Layer):
    """Has a trainable weight that its result does not depend on."""

    def build(self, shape):
        self.spare = self.add_weight(shape=(3,), name="spare")

    def call(self, x):
        return 2 * x


def embedding_model():
    keras.utils.set_random_seed(8)
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(11, 5),
            WithSpareVariable(),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def numbers(steps=STEPS, batch=BATCH):
    random = np.random.default_rng(3)
    x = random.normal(size=(steps * batch, 5)).astype("float32")
    return x, (x[:, :3] * x[:, 1:4] + 0.5).astype("float32")


def words(steps=STEPS, batch=BATCH):
    random = np.random.default_rng(4)
    x = random.integers(0, 11, size=(steps * batch, 4)).astype("int32")
    return x, random.normal(size=(steps * batch, 3)).astype("float32")


def doubled_mse(y_true, y_pred):
    return 2 * keras.losses.mean_squared_error(y_true, y_pred)


def share(array, batch=BATCH):
    """Returns what this rank sees: of each batch its part."""
    parts = array.reshape(-1, hvd.size(), batch // hvd.size(), *array.shape[1:])
    return np.ascontiguousarray(parts[:, hvd.rank()].reshape(-1, *array.shape[1:]))


def fit(model, optimizer, data, batch, loss="mse", callbacks=(), epochs=1, **compiling):
    model.compile(optimizer, loss, **compiling)
    return model.fit(
        *data,
        batch_size=batch,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )


def train_together(optimizer, make_model=small_model, make_data=numbers, batch=BATCH, **options):
    model = make_model()
    data = [share(array, batch) for array in make_data()]
    fit(model, optimizer, data, batch // hvd.size(), **options)
    return model


_alone = {}


def train_alone(optimizer, make_model=small_model, make_data=numbers, batch=BATCH, loss="mse"):
    """Returns the weights after training in one process; each configuration is trained once."""
    key = (
        str(optimizer.get_config() | {"name": None}),
        type(optimizer).__name__,
        *(make_model, make_data, batch, loss, keras.config.dtype_policy().name),
    )
    if key not in _alone:
        model = make_model()
        fit(model, optimizer, make_data(), batch, loss, **QUICKLY)
        _alone[key] = weights(model)
    return _alone[key]


def weights(model):
    return [np.asarray(w, dtype=np.float64) for w in model.get_weights()]


def assert_same(model, reference, **tolerance):
    """Compares the weights of a model with those of another, or with a list."""
    wanted = reference if isinstance(reference, list) else weights(reference)
    for ours, theirs in zip(weights(model), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, **(tolerance or CLOSE))


def assert_equal_on_all_ranks(values, name):
    for value in values:
        everywhere = hvd.allgather(np.asarray(value)[None], name=name)
        everywhere = np.asarray(everywhere)
        assert (everywhere == everywhere[:1]).all(), everywhere


def state(optimizer):
    return [keras.ops.convert_to_numpy(v) for v in optimizer.variables]


several_ranks = pytest.mark.skipif(
    os.environ.get("HOROVOD_SIZE", "1") == "1", reason="needs at least two ranks"
)
