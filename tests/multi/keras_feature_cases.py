"""What else `horovod.keras` does on every backend: saving, callbacks, local layers, values, refusals."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras_reference import (
    BATCH,
    adam,
    assert_equal_on_all_ranks,
    assert_same,
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
from horovod.common.dtypes import Max


class Mine(keras.optimizers.SGD):
    """A class that Keras does not know."""


@keras.saving.register_keras_serializable("keras_feature_cases")
class Registered(keras.optimizers.Adam):
    """A class that Keras was told of."""


# --- the class of the optimizer ------------------------------------------------------------------------


def test_a_wrapped_optimizer_is_of_the_same_class_and_configuration():
    plain = adam(clipnorm=2.0, name="mine")
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, type(plain))
    assert type(optimizer).__name__ == "Adam"
    assert type(optimizer).__module__ == "horovod._keras"
    assert optimizer.get_config() == plain.get_config()
    assert optimizer._HAS_AGGREGATE_GRAD
    assert optimizer.variables() == optimizer.variables
    assert type(hvd.DistributedOptimizer(adam())) is type(optimizer)  # few classes are made


def test_the_round_trip_through_its_configuration_keeps_it_distributed():
    optimizer = hvd.DistributedOptimizer(sgd())
    again = type(optimizer).from_config(optimizer.get_config())
    assert_same(train_together(again), train_alone(sgd()))
    scaled = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(sgd()))
    again = type(scaled).from_config(scaled.get_config())
    assert hasattr(again, "_hvd_reduction")
    assert hasattr(again.inner_optimizer, "_hvd_reduction")


def test_exclusions_from_weight_decay_are_carried_over():
    def excluding():
        optimizer = keras.optimizers.AdamW(0.02, weight_decay=0.5)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    ours = train_together(hvd.DistributedOptimizer(excluding()))
    assert_same(ours, train_alone(excluding()))


# --- saving ----------------------------------------------------------------------------------------------


def trained(optimizer, epochs=1, callbacks=()):
    model = small_model()
    data = [share(array) for array in numbers()]
    # An object, because Keras cannot load the name "mse" from the old file format.
    loss = keras.losses.MeanSquaredError()
    fit(model, optimizer, data, BATCH // hvd.size(), loss, callbacks, epochs)
    return model


@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_saved_model_loads_without_horovod_as_a_plain_one(tmp_path, suffix):
    model = trained(hvd.DistributedOptimizer(adam()))
    path = str(tmp_path / f"model.{suffix}")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert type(loaded.optimizer) is type(adam())
    assert_same(loaded, model)
    if (
        suffix == "keras"
    ):  # from the other, Keras does not restore the state of such a model's optimizer
        for a, b in zip(state(loaded.optimizer), state(model.optimizer), strict=True):
            np.testing.assert_array_equal(a, b)


def test_load_model_makes_a_usable_optimizer_where_keras_does_not(tmp_path):
    path = str(tmp_path / "model.h5")
    trained(hvd.DistributedOptimizer(adam())).save(path)
    with pytest.warns(UserWarning, match="begins anew"):
        loaded = hvd.load_model(path)
    data = [share(array) for array in numbers()]
    loaded.fit(*data, batch_size=BATCH // hvd.size(), shuffle=False, verbose=0)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    assert_equal_on_all_ranks(weights(loaded), "weights")


def test_load_model_goes_on_where_training_was_saved(tmp_path):
    model = trained(hvd.DistributedOptimizer(adam()))
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = hvd.load_model(path, compression=hvd.Compression.none)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    data = [share(array) for array in numbers()]
    for each in (model, loaded):
        each.fit(*data, batch_size=BATCH // hvd.size(), shuffle=False, verbose=0)
    assert_same(loaded, model)
    assert_equal_on_all_ranks(weights(loaded), "weights")
    assert int(loaded.optimizer.iterations) == 20


def test_load_model_finds_classes_that_keras_does_not_know(tmp_path):
    path = str(tmp_path / "model.keras")
    trained(hvd.DistributedOptimizer(Mine(0.1))).save(path)
    for found in (
        hvd.load_model(path, custom_optimizers=[Mine]),
        hvd.load_model(path, custom_objects={"Mine": Mine}),
        hvd.load_model(
            path, custom_optimizers=[keras.optimizers.SGD], custom_objects={"Mine": Mine}
        ),
    ):
        assert isinstance(found.optimizer, Mine)
        assert type(found.optimizer).__module__ == "horovod._keras"


def test_load_model_takes_custom_objects_before_custom_optimizers(tmp_path):
    class Other(Mine):
        pass

    path = str(tmp_path / "model.keras")
    trained(hvd.DistributedOptimizer(Mine(0.1))).save(path)
    found = hvd.load_model(path, custom_optimizers=[Mine], custom_objects={"Mine": Other})
    assert isinstance(found.optimizer, Other)


def test_load_model_takes_a_function_that_makes_the_optimizer(tmp_path):
    path = str(tmp_path / "model.keras")
    trained(hvd.DistributedOptimizer(Mine(0.1))).save(path)

    def make(**config):
        return hvd.DistributedOptimizer(Mine(**config), groups=1)

    found = hvd.load_model(path, custom_objects={"Mine": make})
    assert found.optimizer._hvd.options.groups == 1
    assert isinstance(found.optimizer, Mine)


def test_a_registered_class_is_saved_under_its_registered_name(tmp_path):
    path = str(tmp_path / "model.keras")
    trained(hvd.DistributedOptimizer(Registered(0.01))).save(path)
    assert type(keras.models.load_model(path).optimizer) is Registered
    assert isinstance(hvd.load_model(path).optimizer, Registered)


def test_a_scaling_optimizer_is_saved_and_loaded_in_either_order(tmp_path):
    path = str(tmp_path / "model.keras")
    scaling = keras.optimizers.LossScaleOptimizer
    for optimizer in (
        hvd.DistributedOptimizer(scaling(adam())),
        scaling(hvd.DistributedOptimizer(adam())),
    ):
        model = trained(optimizer)
        model.save(path)
        loaded = keras.models.load_model(path)
        assert type(loaded.optimizer) is scaling
        assert type(loaded.optimizer.inner_optimizer) is type(adam())
        for a, b in zip(state(loaded.optimizer), state(model.optimizer), strict=True):
            np.testing.assert_array_equal(a, b)
        again = hvd.load_model(path)
        assert hasattr(again.optimizer, "_hvd_reduction")


def without_window(optimizer):
    window = getattr(optimizer._hvd.window, "variables", []) if hasattr(optimizer, "_hvd") else []
    own = {id(variable) for variable in window}
    variables = [v for v in optimizer.variables if id(v) not in own]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


@pytest.mark.parametrize("scaling", [False, True])
def test_weights_of_a_wrapped_optimizer_load_into_a_plain_one_and_back(tmp_path, scaling):
    path = str(tmp_path / "state.weights.h5")

    def plain():
        return keras.optimizers.LossScaleOptimizer(adam()) if scaling else adam()

    several = hvd.DistributedOptimizer(plain(), backward_passes_per_step=2)
    trained(several).save_weights(path)
    for other in (
        plain(),
        hvd.DistributedOptimizer(plain()),
        hvd.DistributedOptimizer(plain(), backward_passes_per_step=3),
    ):
        copy = small_model()
        copy.compile(other, "mse")
        other.build(copy.trainable_variables)
        copy.load_weights(path)
        for a, b in zip(without_window(other), without_window(several), strict=True):
            np.testing.assert_array_equal(a, b)


# --- callbacks -----------------------------------------------------------------------------------------


@several_ranks
def test_variables_are_the_roots_after_the_first_batch():
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            getattr(self.model, "jax_state_sync", lambda: None)()
            seen.append((weights(self.model), state(self.model.optimizer)))

    model = small_model()
    model.set_weights([w + hvd.rank() for w in model.get_weights()])
    optimizer = hvd.DistributedOptimizer(adam())
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    data = [share(array) for array in numbers()]
    fit(model, optimizer, data, BATCH // hvd.size(), callbacks=[broadcast, Look()])
    assert broadcast.broadcast_done
    for now, slots in seen:
        assert_equal_on_all_ranks(now, "weights")
        assert_equal_on_all_ranks(slots, "slots")
    assert len(seen) == 10


@several_ranks
def test_local_variables_are_not_broadcast():
    model = small_model()
    model.set_weights([w + hvd.rank() for w in model.get_weights()])
    local = model.layers[0].kernel
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[local])
    broadcast.register_local_var(model.layers[0].bias)
    optimizer = hvd.PartialDistributedOptimizer(sgd(), local_layers=model.layers[0])
    data = [share(array) for array in numbers(steps=2)]
    fit(model, optimizer, data, BATCH // hvd.size(), callbacks=[broadcast])
    kernel, bias, *others = weights(model)
    assert_equal_on_all_ranks(others, "others")
    for mine in (kernel, bias):
        everywhere = np.asarray(hvd.allgather(mine[None], name="mine"))
        assert np.abs(everywhere[0] - everywhere[1]).min() > 0.5


def test_metrics_are_averaged_before_other_callbacks_see_them():
    seen = {}

    class Add(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["zeta"] = float(hvd.rank())
            logs["alpha"] = keras.ops.convert_to_tensor([1.0, 2.0]) * (1.0 + hvd.rank())
            logs["note"] = "text"

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.update(logs)

    trained(
        hvd.DistributedOptimizer(sgd()),
        callbacks=[Add(), hvd.callbacks.MetricAverageCallback(), Look()],
    )
    size = hvd.size()
    assert seen["zeta"] == (size - 1) / 2
    np.testing.assert_allclose(np.asarray(seen["alpha"]), np.array([1.0, 2.0]) * (1 + size) / 2)
    assert seen["note"] == "text"
    assert_equal_on_all_ranks([seen["loss"]], "loss")


class Rates(keras.callbacks.Callback):
    """Remembers the learning rates and momenta that batches were trained with."""

    def __init__(self):
        super().__init__()
        self.rates = []
        self.logged = []

    def on_train_batch_end(self, batch, logs=None):
        getattr(self.model, "jax_state_sync", lambda: None)()
        rate = self.model.optimizer.learning_rate
        self.rates.append(float(keras.ops.convert_to_numpy(rate)))

    def on_epoch_end(self, epoch, logs=None):
        self.logged.append(logs["lr"])


def test_warm_up_rises_from_one_rank_s_rate_to_that_of_all(capfd):
    rates = Rates()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.4, warmup_epochs=2, verbose=1)
    trained(hvd.DistributedOptimizer(sgd()), epochs=3, callbacks=[warmup, rates])
    size = hvd.size()
    epochs = np.minimum((np.arange(30) + 1) / 10, 2)
    np.testing.assert_allclose(rates.rates, 0.4 / size * (epochs * (size - 1) / 2 + 1), rtol=1e-6)
    np.testing.assert_allclose(rates.logged, [rates.rates[9], 0.4, 0.4], rtol=1e-6)
    assert "Epoch 2: finished gradual learning rate warmup to 0.4" in capfd.readouterr().out


def test_a_schedule_multiplies_the_rate_from_epoch_to_epoch():
    rates = Rates()
    decay = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=1, end_epoch=3)
    trained(hvd.DistributedOptimizer(sgd()), epochs=4, callbacks=[decay, rates])
    np.testing.assert_allclose(rates.logged, [0.1, 0.1, 0.05, 0.05], rtol=1e-6)
    rates = Rates()
    smooth = hvd.callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: 1 / (1 + epoch), staircase=False
    )
    trained(hvd.DistributedOptimizer(sgd()), epochs=2, callbacks=[smooth, rates])
    np.testing.assert_allclose(rates.rates, 0.1 / (1 + np.arange(20) / 10), rtol=1e-6)


@pytest.mark.parametrize("correction", [True, False])
def test_momentum_is_corrected_where_the_rate_changes(correction):
    schedule = hvd.callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: 0.2**epoch, momentum_correction=correction
    )
    ours = trained(hvd.DistributedOptimizer(sgd()), epochs=2, callbacks=[schedule])
    # By hand: where the rate changes by a factor, so does what momentum remembers.
    optimizer, reference = sgd(), small_model()
    fit(reference, optimizer, numbers(), BATCH)
    optimizer.learning_rate = 0.02
    if correction:
        for velocity in optimizer.momentums:
            velocity.assign(velocity * 0.2)
    reference.fit(*numbers(), batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(ours, reference)
    assert ours.optimizer.momentum == 0.9


def test_callbacks_say_what_they_need():
    callbacks = hvd.callbacks
    with pytest.raises(ValueError, match="needs initial_lr"):
        callbacks.LearningRateScheduleCallback(None, 0.1)
    schedule = callbacks.LearningRateScheduleCallback(0.1, 0.1, staircase=False)
    schedule.set_params({"steps": None})
    with pytest.raises(ValueError, match="give it steps_per_epoch"):
        schedule.on_train_begin()
    broadcast = callbacks.BroadcastGlobalVariablesCallback(0)
    broadcast.set_model(keras.Sequential([keras.layers.Dense(2)]))
    with pytest.raises(ValueError, match="build the model"):
        broadcast.on_batch_end(0)
    with pytest.raises(ValueError, match="set its attribute filepath"):
        callbacks.BestModelCheckpoint().on_train_begin()


def test_the_best_model_is_kept(tmp_path):
    checkpoint = hvd.callbacks.BestModelCheckpoint(monitor="loss")
    assert checkpoint.filepath is None
    assert checkpoint.save_best_only
    checkpoint.filepath = str(tmp_path / "best.keras")
    model = trained(hvd.DistributedOptimizer(sgd()), callbacks=[checkpoint])
    assert_same(keras.models.load_model(checkpoint.filepath), model)


# --- local layers ----------------------------------------------------------------------------------------


@several_ranks
@pytest.mark.parametrize("scale", [True, False])
def test_local_layers_keep_their_gradients(scale):
    model = small_model()
    data = [share(array) for array in numbers(steps=1)]
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=[model.layers[0]], scale_local_gradients=scale
    )
    fit(model, optimizer, data, BATCH // hvd.size())
    whole, part = small_model(), small_model()
    fit(whole, keras.optimizers.SGD(0.1), numbers(steps=1), BATCH)
    fit(part, keras.optimizers.SGD(0.1 / hvd.size() if scale else 0.1), data, BATCH // hvd.size())
    wanted = [*weights(part)[:2], *weights(whole)[2:]]
    assert_same(model, wanted)


# --- values --------------------------------------------------------------------------------------------


def test_values_are_reduced_at_once():
    size, rank = hvd.size(), hvd.rank()
    average = (size - 1) / 2
    assert float(hvd.allreduce(float(rank), name="number")) == average
    assert float(hvd.allreduce(np.float32(rank), name="scalar", op=hvd.Sum)) == average * size
    with pytest.warns(DeprecationWarning):
        assert float(hvd.allreduce(float(rank), name="old", average=False)) == average * size
    array = np.arange(6.0).reshape(2, 3) + rank
    for value in (
        array,
        keras.ops.convert_to_tensor(array),
        keras.Variable(array, dtype="float64"),
    ):
        result = hvd.allreduce(value, name="array", prescale_factor=2.0, postscale_factor=0.5)
        np.testing.assert_allclose(np.asarray(result), array - rank + average)
    highest = hvd.allreduce(array, op=Max, compression=hvd.Compression.fp16)
    np.testing.assert_allclose(np.asarray(highest), array - rank + size - 1)


def test_values_are_gathered_broadcast_and_scattered_at_once():
    size, rank = hvd.size(), hvd.rank()
    gathered = hvd.allgather(np.full((rank + 1, 2), rank), name="rows")
    assert np.asarray(gathered).shape == (size * (size + 1) // 2, 2)
    assert float(hvd.broadcast(float(rank + 5), size - 1, name="number")) == size + 4
    rows = np.arange(2.0 * size).reshape(size, 2)
    np.testing.assert_array_equal(
        np.asarray(hvd.reducescatter(rows, name="rows", op=hvd.Sum)), rows[rank : rank + 1] * size
    )
    np.testing.assert_array_equal(np.asarray(hvd.reducescatter(rows)), rows[rank : rank + 1])


def test_global_variables_are_those_of_a_graph():
    with pytest.raises(RuntimeError, match="graph of TensorFlow 1"):
        hvd.broadcast_global_variables(0)


# --- refusals ------------------------------------------------------------------------------------------


def test_an_optimizer_is_wrapped_once():
    scaling = keras.optimizers.LossScaleOptimizer
    optimizer = hvd.DistributedOptimizer(sgd())
    for wrapped in (
        optimizer,
        scaling(optimizer),
        hvd.DistributedOptimizer(scaling(sgd())),
    ):
        with pytest.raises(ValueError, match="is a DistributedOptimizer already"):
            hvd.DistributedOptimizer(wrapped)


class OfAnotherKeras:
    """Looks like an optimizer."""

    def apply_gradients(self):
        """Does nothing."""

    def get_config(self):
        """Returns nothing."""


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ("sgd", "got a str"),
        (3, "got a int"),
        (keras.optimizers.SGD, "make an object of it"),
        (OfAnotherKeras(), "of another Keras"),
    ],
    ids=["name", "number", "class", "other Keras"],
)
def test_what_is_no_optimizer_of_this_keras_is_refused(wrong, text):
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(wrong)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": Max}, "^op currently only supports Average and Sum$"),
        ({"op": hvd.Adasum}, "^op currently only supports Average and Sum$"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "needs op=Average"),
        ({"groups": -1}, "non-negative"),
        ({"groups": True}, "non-negative"),
        ({"groups": "all"}, "non-negative"),
        ({"groups": [3]}, "has a int in it"),
        ({"groups": [[3]]}, "has a int in it"),
        ({"backward_passes_per_step": 0}, "at least 1"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        hvd.DistributedOptimizer(sgd(), **options)


def test_num_groups_is_the_old_form_of_groups():
    with pytest.warns(DeprecationWarning, match="use groups="):
        optimizer = hvd.DistributedOptimizer(sgd(), num_groups=2)
    assert optimizer._hvd.options.groups == 2


def test_local_layers_must_be_built_layers():
    with pytest.raises(ValueError, match="must be layers"):
        hvd.PartialDistributedOptimizer(sgd(), local_layers=[3])
    with pytest.raises(ValueError, match="build the model first"):
        hvd.PartialDistributedOptimizer(sgd(), local_layers=keras.layers.Dense(2))
