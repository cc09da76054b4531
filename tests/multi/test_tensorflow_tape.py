"""DistributedGradientTape: training with it equals training in one process on the whole batch.

The mean of the ranks' means is the mean of the whole batch because ranks have batches of equal size; sums
of float32 in another order differ in the last bits, so the tolerance is 1e-5 of the weights' size. Sums of
float16, which has 11 bits, differ by one part in a thousand; so do the weights after ten steps.
"""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd

LAUNCHES = {
    "main": ["-np 1", "-np 2", "-np 3", "-np 4 -H localhost:2,127.0.0.1:2"],
    "tensorflow1": ["-np 2"],
}

ROWS, FEATURES, WORDS = 4, 6, 12
STEPS = 10


@pytest.fixture(scope="module", autouse=True)
def job():
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


class Model:
    """An embedding, two layers and a variable that nothing uses."""

    def __init__(self):
        rng = np.random.default_rng(7)

        def variable(*shape):
            return tf.Variable(rng.normal(0, 0.5, shape).astype(np.float32))

        self.embedding = variable(WORDS, FEATURES)
        self.first = variable(FEATURES, 5)
        self.second = variable(5, 1)
        self.unused = variable(3)

    @property
    def variables(self):
        return [self.embedding, self.first, self.second, self.unused]

    def loss(self, words, targets):
        hidden = tf.nn.relu(tf.gather(self.embedding, words) @ self.first)
        return tf.reduce_mean(tf.square(tf.squeeze(hidden @ self.second, 1) - targets))


def batch(step, ranks):
    """Returns the rows of these ranks at this step."""
    parts = []
    for r in ranks:
        rng = np.random.default_rng([step, r])
        parts.append((rng.integers(0, WORDS, ROWS), rng.normal(0, 1, ROWS).astype(np.float32)))
    return [tf.constant(np.concatenate(part)) for part in zip(*parts, strict=True)]


def make_optimizer(kind):
    if kind == "adam":
        return tf.keras.optimizers.Adam(0.01)
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)


def apply(optimizer, gradients, variables):
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    optimizer.apply_gradients(pairs)


def train(kind, ranks, wrap, as_function=False, **options):
    """Returns the weights after training on the rows of `ranks`."""
    model, optimizer = Model(), make_optimizer(kind)

    def step(words, targets):
        with tf.GradientTape() as tape:
            loss = model.loss(words, targets)
        gradients = wrap(tape, model).gradient(loss, model.variables)
        assert gradients[3] is None
        apply(optimizer, gradients, model.variables)

    if as_function:
        step = tf.function(step, **options)
    for number in range(STEPS):
        step(*batch(number, ranks))
    return [v.numpy() for v in model.variables]


def assert_near(got, expected, tolerance=1e-5):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


OPTIONS = {
    "plain": {},
    "sparse_as_dense": {"sparse_as_dense": True},
    "two groups": {"groups": 2, "sparse_as_dense": True},
    "predivide": {"gradient_predivide_factor": 2.0, "sparse_as_dense": True},
    "sum": {"op": hvd.Sum},
}


@pytest.mark.parametrize("as_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_training_equals_one_process_on_the_whole_batch(kind, options, as_function):
    whole = list(range(hvd.size()))

    def reference(tape, model):
        factor = hvd.size() if options.get("op") == hvd.Sum else 1

        def scaled(g):
            if g is None:
                return None
            # A single rank has nothing to reduce and its gradients stay as they are.
            dense = options.get("sparse_as_dense") and hvd.size() > 1
            if not isinstance(g, tf.IndexedSlices) or dense:
                return tf.convert_to_tensor(g) * factor
            return tf.IndexedSlices(g.values * factor, g.indices, g.dense_shape)

        class Scaled:
            def gradient(self, loss, sources):
                return [scaled(g) for g in tape.gradient(loss, sources)]

        return Scaled()

    expected = train(kind, whole, reference)
    got = train(
        kind,
        [hvd.rank()],
        lambda tape, _: hvd.DistributedGradientTape(tape, **options),
        as_function,
    )
    assert_near(got, expected)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_training_compiled_by_xla(kind):
    class Dense:
        def __init__(self, tape):
            self.tape = tape

        def gradient(self, loss, sources):
            gradients = self.tape.gradient(loss, sources)
            if hvd.size() == 1:
                return gradients
            return [None if g is None else tf.convert_to_tensor(g) for g in gradients]

    expected = train(kind, list(range(hvd.size())), lambda tape, _: Dense(tape))
    got = train(
        kind,
        [hvd.rank()],
        lambda tape, _: hvd.DistributedGradientTape(tape),
        as_function=True,
        jit_compile=True,
    )
    assert_near(got, expected, 2e-5)  # XLA fuses operations, which rounds in other places


def test_lists_of_variables_as_groups():
    def reference(tape, model):
        return tape

    def wrap(tape, model):
        return hvd.DistributedGradientTape(
            tape, groups=[[model.first, model.second]], sparse_as_dense=True
        )

    expected = train("sgd", list(range(hvd.size())), reference)
    assert_near(train("sgd", [hvd.rank()], wrap), expected)


def train_in_half(kind, ranks, wrap):
    """Returns the weights after training with float16 activations and a dynamic loss scale."""
    model = Model()
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(make_optimizer(kind))
    scale = getattr(optimizer, "scale_loss", None) or optimizer.get_scaled_loss  # Keras 3, Keras 2

    def step(words, targets):
        with tf.GradientTape() as tape:
            first, second = (tf.cast(v, tf.float16) for v in (model.first, model.second))
            rows = tf.cast(tf.gather(model.embedding, words), tf.float16)
            outputs = tf.squeeze(tf.nn.relu(rows @ first) @ second, 1)
            loss = scale(tf.reduce_mean(tf.square(tf.cast(outputs, tf.float32) - targets)))
        gradients = wrap(tape).gradient(loss, model.variables)
        if hasattr(optimizer, "get_unscaled_gradients"):
            gradients = optimizer.get_unscaled_gradients(gradients)
        apply(optimizer, gradients, model.variables)

    step = tf.function(step)
    for number in range(STEPS):
        step(*batch(number, ranks))
    return [v.numpy() for v in model.variables]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_mixed_precision_equals_one_process(kind):
    expected = train_in_half(kind, list(range(hvd.size())), lambda tape: tape)
    got = train_in_half(kind, [hvd.rank()], lambda tape: hvd.DistributedGradientTape(tape))
    assert_near(got, expected, 3e-3)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compression_is_near(name):
    def wrap(tape, model):
        return hvd.DistributedGradientTape(
            tape, compression=getattr(hvd.Compression, name), sparse_as_dense=True
        )

    expected = train("sgd", list(range(hvd.size())), lambda tape, _: tape)
    # 11 and 8 bits of precision over ten steps.
    assert_near(train("sgd", [hvd.rank()], wrap), expected, 2e-2 if name == "bf16" else 3e-3)


def test_all_ranks_end_with_equal_weights():
    got = train("adam", [hvd.rank()], lambda tape, _: hvd.DistributedGradientTape(tape))
    for weights in got:
        everyones = hvd.allgather(weights[None])
        np.testing.assert_array_equal(everyones, np.broadcast_to(weights, everyones.shape))


# --- structures, kinds of tape ---------------------------------------------------------------------


def rank_gradient(wrap, sources, **tape_options):
    """Returns the gradients of rank + 1 times the sum of squares of all ones."""
    with tf.GradientTape(**tape_options) as tape:
        flat = tf.nest.flatten(sources)
        for source in flat:
            tape.watch(source)
        loss = tf.add_n([tf.reduce_sum(s * s) for s in flat]) * (hvd.rank() + 1.0)
    return wrap(tape).gradient(loss, sources)


MEAN = "2 * mean of 1..n"


def mean():
    return hvd.size() + 1.0  # 2 * (1 + ... + n) / n


@pytest.mark.parametrize(
    "structure",
    [
        lambda: tf.Variable(1.0),
        lambda: [tf.Variable(1.0)],
        lambda: {"b": tf.Variable(1.0), "a": [tf.Variable([1.0, 1.0])]},
        lambda: tf.constant([1.0, 1.0]),
    ],
    ids=["one", "list", "nested", "tensor"],
)
def test_gradients_have_the_structure_of_the_sources(structure):
    sources = structure()
    got = rank_gradient(hvd.DistributedGradientTape, sources)
    tf.nest.assert_same_structure(got, sources)
    for gradient in tf.nest.flatten(got):
        np.testing.assert_allclose(gradient, np.full(gradient.shape, mean()), rtol=1e-6)


def test_a_persistent_tape_gives_gradients_again():
    x = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        y = x * x * (hvd.rank() + 1.0)
    tape = hvd.DistributedGradientTape(tape)
    assert tape._persistent
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient(y, x), mean(), rtol=1e-6)


def test_output_gradients_are_passed_on():
    x = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        y = x * 3.0
    got = hvd.DistributedGradientTape(tape).gradient(
        y, [x], output_gradients=tf.constant([2.0, 4.0])
    )
    np.testing.assert_allclose(got[0], [6.0, 12.0])


def test_a_tape_that_is_still_recording():
    x = tf.Variable(2.0)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        y = x * x * (hvd.rank() + 1.0)
    np.testing.assert_allclose(tape.gradient(y, x), 2 * mean(), rtol=1e-6)


@pytest.mark.parametrize("scale", [True, False])
def test_local_sources_stay_on_their_rank(scale):
    local, shared = tf.Variable(1.0), tf.Variable(1.0)

    def wrap(tape):
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        tape.register_local_source(local)
        return tape

    got = rank_gradient(wrap, [local, shared])
    own = 2.0 * (hvd.rank() + 1) / (hvd.size() if scale else 1)
    np.testing.assert_allclose(got, [own, mean()], rtol=1e-6)


def test_a_partial_tape_knows_the_local_layers():
    local = tf.keras.layers.Dense(1, use_bias=False)
    shared = tf.keras.layers.Dense(1, use_bias=False)
    x = tf.ones([1, 1])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(local(x) + shared(x)) * (hvd.rank() + 1.0)
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=local)
    sources = [*local.trainable_weights, *shared.trainable_weights]
    kept, reduced = tape.get_local_and_global_gradients(loss, sources)
    assert kept[0][0] is sources[0]
    assert reduced[0][0] is sources[1]
    np.testing.assert_allclose(kept[0][1], [[(hvd.rank() + 1.0) / hvd.size()]], rtol=1e-6)
    np.testing.assert_allclose(reduced[0][1], [[mean() / 2]], rtol=1e-6)


def test_ranks_outside_the_set_keep_their_gradients():
    if hvd.size() < 3:
        pytest.skip("needs a rank outside the set")
    pair = hvd.add_process_set([0, 1])
    got = rank_gradient(
        lambda tape: hvd.DistributedGradientTape(tape, process_set=pair), tf.Variable(1.0)
    )
    np.testing.assert_allclose(got, 3.0 if hvd.rank() < 2 else 2.0 * (hvd.rank() + 1))
    hvd.remove_process_set(pair)


# --- bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_function", [False, True], ids=["eager", "function"])
def test_a_gradient_that_only_some_ranks_have(as_function):
    if hvd.size() < 2:
        pytest.skip("needs another rank")
    x, y = tf.Variable(1.0), tf.Variable(1.0)

    def step():
        with tf.GradientTape() as tape:
            loss = x * x if hvd.rank() == 0 else x * y
        return [
            g for g in hvd.DistributedGradientTape(tape).gradient(loss, [x, y]) if g is not None
        ]

    with pytest.raises(tf.errors.InvalidArgumentError, match="Ranks have different gradients"):
        (tf.function(step) if as_function else step)()
    assert float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)) == hvd.size()


def test_what_a_tape_refuses():
    tape = tf.GradientTape()
    with pytest.raises(ValueError, match="once"):
        hvd.DistributedGradientTape(hvd.DistributedGradientTape(tape))
    with pytest.raises(ValueError, match=r"needs a tf\.GradientTape, not a list"):
        hvd.DistributedGradientTape([])
    with pytest.raises(ValueError, match="groups should be"):
        hvd.DistributedGradientTape(tape, groups=-1)
    with pytest.raises(ValueError, match="groups should be"):
        hvd.DistributedGradientTape(tape, groups=[tf.Variable(1.0)])
    with pytest.raises(ValueError, match="needs op=Average"):
        hvd.DistributedGradientTape(tape, gradient_predivide_factor=2.0, op=hvd.Sum)
    with pytest.raises(NotImplementedError):
        hvd.DistributedGradientTape(tape, op=hvd.Adasum)
    with pytest.raises(ValueError, match="must be layers"):
        hvd.PartialDistributedGradientTape(tape, local_layers=[3])
    with pytest.deprecated_call():
        hvd.DistributedGradientTape(tape, num_groups=2)


def test_aggregation_takes_a_gradient_that_comes_and_goes():
    from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager

    first, second = tf.Variable(0.0), tf.Variable(0.0)
    helper = LocalGradientAggregationHelperEager(
        backward_passes_per_step=2,
        allreduce_func=lambda gradients, _: [hvd.allreduce(g, op=hvd.Sum) for g in gradients],
        sparse_as_dense=False,
        average_aggregated_gradients=False,
    )

    class Optimizer:
        iterations = tf.Variable(0)

    def window(*passes):
        for gradients in passes:
            got = helper.compute_gradients(gradients, [first, second])
            helper.apply_gradients(lambda: None, Optimizer)
        return [None if g is None else float(g) for g in got]

    one, two = tf.constant(1.0), tf.constant(2.0)
    assert window([one, None], [one, two]) == [2.0 * hvd.size(), 2.0 * hvd.size()]
    assert window([one, two], [one, None]) == [2.0 * hvd.size(), 2.0 * hvd.size()]
    assert window([None, None], [one, None]) == [1.0 * hvd.size(), None]
    assert int(Optimizer.iterations) == 3
    helper.register_local_var(second)
    expected = pytest.approx([2.0 * hvd.size(), 4.0 / hvd.size()], rel=1e-6)  # float32
    assert window([one, two], [one, two]) == expected


@pytest.mark.parametrize("rows", [3, 5])
def test_sync_batch_normalization_equals_the_whole_batch(rows):
    rng = np.random.default_rng(3)
    everything = rng.normal(2, 3, (hvd.size() * rows, 4)).astype(np.float32)
    mine = everything[hvd.rank() * rows :][:rows]
    layer = hvd.SyncBatchNormalization()
    plain = tf.keras.layers.BatchNormalization()
    got = layer(mine, training=True)
    expected = plain(everything, training=True)[hvd.rank() * rows :][:rows]
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(layer.moving_mean, plain.moving_mean, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="fused"):
        hvd.SyncBatchNormalization(fused=True)
