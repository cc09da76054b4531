"""Collectives inside functions that XLA compiles: values, gradients, names, order, errors, Keras.

Values over all sizes are the conformance suite's; here is what only compiled functions have.
"""

from __future__ import annotations

import os
import threading
import zlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod import _core
from horovod.tensorflow import xla, xla_program

LAUNCHES = ["-np 2", "-np 3"]
ENVIRONMENTS = ["main", "tensorflow1"]


@pytest.fixture(scope="module", autouse=True)
def job():
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


@pytest.fixture
def rank():
    return hvd.rank()


@pytest.fixture
def size():
    return hvd.size()


def compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


def values_of(rank, shape, dtype):
    numbers = np.arange(np.prod(shape)).reshape(shape) % 5 + rank + 1
    return (numbers % 2 if dtype == np.bool_ else numbers).astype(dtype)


# --- values ---------------------------------------------------------------------------------------

DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.int64,
    np.bool_,
    np.complex64,
    np.complex128,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_collective_on_every_dtype(dtype, rank, size):
    all_ranks = [values_of(r, (2 * size, 3), dtype) for r in range(size)]

    @compiled
    def run(x):
        return {
            "sum": hvd.allreduce(x, op=hvd.Sum),
            "gathered": hvd.allgather(x),
            "broadcast": hvd.broadcast(x, root_rank=size - 1),
            "exchanged": hvd.alltoall(x),
            "scattered": hvd.reducescatter(x, op=hvd.Sum),
        }

    got = {key: value.numpy() for key, value in run(tf.constant(all_ranks[rank])).items()}
    total = np.sum(np.stack(all_ranks), axis=0).astype(dtype)
    mine = slice(2 * rank, 2 * rank + 2)
    expected = {
        "sum": total,
        "gathered": np.concatenate(all_ranks),
        "broadcast": all_ranks[-1],
        "exchanged": np.concatenate([values[mine] for values in all_ranks]),
        "scattered": total[mine],
    }
    for key, value in expected.items():
        assert got[key].dtype == value.dtype, key
        np.testing.assert_array_equal(got[key], value, key)


def test_operators_and_factors(rank, size):
    x = tf.constant([1.0, -2.0, 3.0]) * (rank + 1)

    @compiled
    def run(x):
        return (
            hvd.allreduce(x),
            hvd.allreduce(x, op=hvd.Min),
            hvd.allreduce(x, op=hvd.Max),
            hvd.allreduce(x, op=hvd.Product),
            hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
        )

    everyones = np.array([[1.0, -2.0, 3.0]]) * np.arange(1, size + 1)[:, None]
    average, least, most, product, scaled = run(x)
    np.testing.assert_allclose(average, everyones.mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(least, everyones.min(axis=0))
    np.testing.assert_array_equal(most, everyones.max(axis=0))
    np.testing.assert_allclose(product, everyones.prod(axis=0))
    np.testing.assert_allclose(scaled, 2 * everyones.sum(axis=0))


def test_groups_of_several_types_and_shapes(rank, size):
    @compiled
    def run():
        tensors = [tf.fill([i + 1, 2], float(rank + i)) for i in range(3)]
        tensors += [tf.fill([2 * size], rank + 1), tf.constant(rank, tf.float64)]
        return (
            hvd.grouped_allreduce(tensors, op=hvd.Sum, name="mixed"),
            hvd.grouped_allgather(tensors[:4]),
            hvd.grouped_reducescatter([tensors[3], tensors[3] * 2], op=hvd.Sum),
        )

    reduced, gathered, scattered = run()
    ranks = size * (size - 1) / 2
    for i in range(3):
        np.testing.assert_array_equal(reduced[i], np.full([i + 1, 2], ranks + size * i))
        rows = np.repeat(np.arange(size) + float(i), i + 1)
        np.testing.assert_array_equal(gathered[i], np.stack([rows, rows], axis=1))
    np.testing.assert_array_equal(reduced[3], np.full(2 * size, ranks + size))
    assert float(reduced[4]) == ranks
    np.testing.assert_array_equal(scattered[1], np.full(2, 2 * (ranks + size)))


def test_empty_tensors_and_uneven_rows(rank, size):
    @compiled
    def run(x):
        return (
            hvd.allreduce(x[:0], name="empty"),
            hvd.allgather(x[:0]),
            hvd.reducescatter(x, op=hvd.Sum),
        )

    x = tf.reshape(tf.range(2 * (size + 1)), [size + 1, 2])
    empty, gathered, scattered = run(x)
    assert empty.shape == [0, 2]
    assert gathered.shape == [0, 2]
    # The first rank has one row more.
    begin = rank + min(rank, 1)
    np.testing.assert_array_equal(scattered, x[begin : begin + 1 + (rank == 0)] * size)


def test_alltoall_takes_equal_splits_that_are_known(rank, size):
    @compiled
    def run(x):
        return hvd.alltoall(x, splits=tf.constant([1] * size))

    x = tf.range(size + 1) + 10 * rank  # the last row stays
    output, received = run(x)
    np.testing.assert_array_equal(output, [10 * r + rank for r in range(size)])
    np.testing.assert_array_equal(received, [1] * size)


def test_process_sets(rank, size):
    if size < 3:
        pytest.skip("needs a rank outside the set")
    last_two = hvd.add_process_set([size - 2, size - 1])
    if last_two.included():

        @compiled
        def run(x):
            return (
                hvd.allreduce(x, process_set=last_two),
                hvd.allgather(x, process_set=last_two),
                hvd.broadcast(x, size - 1, process_set=last_two),
                hvd.reducescatter(x, op=hvd.Sum, process_set=last_two),
                xla.answer("set_rank", last_two.process_set_id),
            )

        ranks = [size - 2.0, size - 1.0]
        average, gathered, sent, scattered, set_rank = run(tf.fill([2], float(rank)))
        np.testing.assert_array_equal(average, [np.mean(ranks)] * 2)
        np.testing.assert_array_equal(gathered, np.repeat(ranks, 2))
        np.testing.assert_array_equal(sent, [size - 1.0] * 2)
        np.testing.assert_array_equal(scattered, [sum(ranks)])
        assert int(set_rank) == last_two.rank()
    hvd.remove_process_set(last_two)


def test_who_am_i_at_run_time(rank, size):
    @compiled
    def run():
        return (
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.process_set_included_op(),
        )

    assert [int(v) for v in run()] == [rank, size, hvd.local_rank(), hvd.local_size(), 1]


def test_the_program_is_the_same_on_all_ranks(rank, size):
    # What depends on the rank is asked at run time, so that XLA plans all ranks' programs alike.
    def run(x):
        y = hvd.broadcast(x, 0) + hvd.allgather(x)[:2]
        return tf.gradients(tf.reduce_sum(y), x)[0]

    graph = compiled(run).get_concrete_function(tf.TensorSpec([2], tf.float32)).graph
    calls = [op.get_attr("module") for op in graph.get_operations() if op.type == "XlaCallModule"]
    assert len(calls) == 10  # four collectives, two questions
    checks = hvd.allgather(tf.constant([zlib.crc32(b"".join(calls))], tf.int64))
    assert len(set(checks.numpy().tolist())) == 1


# --- gradients ------------------------------------------------------------------------------------


def gradient_inside(call, x):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(call(x) * (hvd.rank() + 1.0))
        return tape.gradient(loss, x)

    return compiled(run)(x)


def gradient_outside(call, x):
    run = compiled(call)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(run(x) * (hvd.rank() + 1.0))
    return tape.gradient(loss, x)


def gradient_of_a_concrete_function(call, x):
    run = compiled(call).get_concrete_function(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(run(x) * (hvd.rank() + 1.0))
    return tape.gradient(loss, x)


@pytest.mark.parametrize(
    "gradient", [gradient_inside, gradient_outside, gradient_of_a_concrete_function]
)
def test_gradients(gradient, rank, size):
    x = tf.reshape(tf.range(6.0 * size, dtype=tf.float64), [2 * size, 3])
    weights = np.arange(1.0, size + 1)
    mean, total = weights.mean(), weights.sum()
    blocks = np.repeat(weights, 2)[:, None]

    def check(call, expected, x=x):
        np.testing.assert_allclose(gradient(call, x), np.broadcast_to(expected, x.shape))

    check(lambda x: hvd.allreduce(x, op=hvd.Sum), total)
    check(lambda x: hvd.allreduce(x), mean)
    check(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0), 2 * total)
    check(lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1], total)
    check(lambda x: hvd.allgather(x), mean)
    check(lambda x: hvd.grouped_allgather([x, 2 * x])[1], 2 * mean)
    check(lambda x: hvd.broadcast(x, root_rank=0), mean if rank == 0 else 0.0)
    check(lambda x: hvd.alltoall(x), blocks)
    check(lambda x: hvd.reducescatter(x, op=hvd.Sum), blocks * size)
    check(lambda x: hvd.reducescatter(x), blocks)
    check(
        lambda x: hvd.reducescatter(x),
        np.repeat(weights, [2] + [1] * (size - 1))[:, None],
        x=x[: size + 1],
    )


def test_gradients_of_gradients(rank, size):
    weights = np.arange(1.0, size + 1)

    @compiled
    def run(x):
        y = hvd.allreduce(x, op=hvd.Sum) * (rank + 1.0)
        first = tf.gradients(tf.reduce_sum(y * y), x)[0]
        return first, tf.gradients(tf.reduce_sum(first), x)[0]

    first, second = run(tf.constant([1.0, 2.0]))
    squares = 2 * np.sum(weights**2)
    np.testing.assert_allclose(first, [squares * size, squares * size * 2])
    np.testing.assert_allclose(second, [squares * size] * 2)


def test_a_tape_around_a_model(rank, size):
    weights = [tf.Variable(tf.ones([3, 4])), tf.Variable(tf.zeros([4]))]

    @compiled
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights[0] + weights[1]) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return gradients

    for _ in range(3):
        gradients = step(tf.fill([2, 3], rank + 1.0))
        for value in (*gradients, *weights):
            everyones = hvd.allgather(value[None])
            np.testing.assert_array_equal(everyones[0], everyones[-1])


# --- where it is compiled --------------------------------------------------------------------------


def test_functions_within_functions(rank, size):
    @tf.function
    def inner(x):
        assert xla.in_compiled_function()
        return hvd.allreduce(x, op=hvd.Sum, name="inner")

    @compiled
    def outer(x):
        y = inner(x)
        y = tf.cond(tf.reduce_sum(y) > 0, lambda: hvd.allreduce(y, name="branch"), lambda: y)
        return tf.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, hvd.allreduce(y, op=hvd.Sum)), [0, y]
        )[1]

    np.testing.assert_array_equal(outer(tf.ones(3)), np.full(3, size**4))


def test_compiled_parts_of_a_function_that_is_not(rank, size):
    seen = {}

    @compiled
    def inner(x):
        seen["inner"] = xla.in_compiled_function()
        return hvd.allreduce(x, op=hvd.Sum)

    @tf.function
    def outer(x):
        seen["outer"] = xla.in_compiled_function()
        return inner(hvd.allreduce(x, op=hvd.Sum, name="plain"))

    np.testing.assert_array_equal(outer(tf.ones(2)), [size**2] * 2)
    assert seen == {"inner": True, "outer": False}
    assert not xla.in_compiled_function()


def test_the_setting_forces_and_forbids(monkeypatch, rank, size):
    monkeypatch.setenv(xla.SETTING, "1")
    assert not xla.in_compiled_function()

    def both(x):
        y = hvd.allreduce(x, op=hvd.Sum, name="forced")
        return y, tf.gradients(y, x)[0]

    for function in (tf.function(both), compiled(both)):
        graph = function.get_concrete_function(tf.ones(2)).graph
        kinds = {op.type for op in graph.get_operations()}
        assert "XlaCallModule" in kinds and "HorovodAllreduce" not in kinds
        np.testing.assert_array_equal(function(tf.ones(2))[0], [size] * 2)
    monkeypatch.setenv(xla.SETTING, "0")

    @compiled
    def run(x):
        return hvd.allreduce(x, name="forbidden")

    with pytest.raises(tf.errors.InvalidArgumentError, match="HorovodAllreduce"):
        run(tf.ones(2))


def test_names_are_unique_within_a_function_and_without_special_characters(rank, size):
    @compiled
    def run(x):
        with tf.name_scope("scope"):
            return [hvd.allreduce(x * i, op=hvd.Sum, name="same") for i in range(3)]

    graph = run.get_concrete_function(tf.ones(2)).graph
    names = {op.name for op in graph.get_operations() if op.type == "XlaCallModule"}
    assert {"scope/same", "scope/same_1", "scope/same_2"} <= names
    for i, value in enumerate(run(tf.ones(2))):
        np.testing.assert_array_equal(value, [i * size] * 2)


def test_a_rank_that_compiles_and_one_that_does_not_understand_each_other(rank, size):
    def run(x):
        y = hvd.allreduce(x, op=hvd.Sum, prescale_factor=1 / 3, name="one")
        return hvd.grouped_allreduce([y, y + 1], op=hvd.Sum, name="two")[1]

    expected = size * (size / 3) + size
    function = compiled(run) if rank == 0 else tf.function(run)
    np.testing.assert_allclose(function(tf.ones(2)), [expected] * 2, rtol=1e-6)


def test_scopes_may_be_ignored(rank, size):
    @compiled
    def run(x):
        with tf.name_scope(f"scope{rank}"):
            y = hvd.allreduce(x, op=hvd.Sum, name="scoped", ignore_name_scope=True)
            return y, tf.gradients(y * (rank + 1.0), x)[0]

    reduced, gradient = run(tf.ones(2))
    np.testing.assert_array_equal(reduced, [size] * 2)
    np.testing.assert_array_equal(gradient, [size * (size + 1) / 2] * 2)


# --- order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [16, 400], ids=["small", "large"])
def test_small_independent_collectives_are_in_flight_together(rows, rank, size):
    count = 8

    @compiled
    def run(x):
        parts = [tf.linalg.matmul(x, x) * (i + 1.0) for i in range(count)]
        return tf.add_n(
            [
                tf.linalg.matmul(hvd.allreduce(part, op=hvd.Sum, name=f"apart{rows}.{i}"), x)
                for i, part in enumerate(parts)
            ]
        )

    x = tf.eye(rows)
    run.get_concrete_function(x)
    if rank == 0:
        results = []
        thread = threading.Thread(target=lambda: results.append(run(x)))
        thread.start()
        # The others have submitted nothing yet, so nothing can have been finished.
        submitted = _core.counters()["operations_in_flight"]
        expected = count if 2 * rows * rows * 4 <= xla.SMALL_BYTES else 1
        while submitted < expected:
            submitted = _core.counters()["operations_in_flight"]
        hvd.broadcast_object("go", name=f"go{rows}")
        thread.join()
        (got,) = results
    else:
        hvd.broadcast_object(None, name=f"go{rows}")
        got = run(x)
    np.testing.assert_array_equal(got, np.eye(rows) * size * count * (count + 1) / 2)


def test_what_a_collective_needs_comes_before_it(rank, size):
    # Directly, through a variable, through the order of a program's effects, and not at all.
    total, steps = tf.Variable(tf.zeros(3)), tf.Variable(0.0)

    @compiled
    def run(x):
        first = hvd.allreduce(x, op=hvd.Sum)
        second = hvd.allreduce(first * 2, op=hvd.Sum)
        total.assign_add(second)
        steps.assign_add(1.0)
        third = hvd.allreduce(total + steps, op=hvd.Sum)
        apart = hvd.allreduce(x + 1, op=hvd.Sum)
        total.assign(third + apart)
        return total.read_value()

    expected = np.zeros(3)
    for step in range(1, 4):
        expected = (expected + 2 * size**2 + step) * size + 2 * size
        np.testing.assert_allclose(run(tf.ones(3)), expected, rtol=1e-5)


def test_programs_with_large_and_small_collectives(rank, size):
    # Large ones come in one piece, small ones in two; they are ordered together.
    @compiled
    def run(x):
        total = tf.reduce_sum(x)
        for i in range(3):
            small = hvd.allreduce(x[:5], op=hvd.Sum, name=f"small{i}")
            large = hvd.allreduce(x + 1.0, op=hvd.Sum, name=f"large{i}")
            rows = hvd.allgather(x[:7], name=f"rows{i}")
            total += tf.reduce_sum(small) + tf.reduce_sum(large) / 1e6 + tf.reduce_sum(rows)
        return total

    for _ in range(5):
        assert float(run(tf.zeros(10**6))) == pytest.approx(3 * size)


def test_threads_may_start_functions_in_any_order(rank, size):
    count, repetitions = 4, 20

    def make(i):
        @compiled
        def run(x):
            for j in range(3):
                x = hvd.allreduce(x, name=f"thread{i}.{j}") + 1
            return x

        return run

    functions = [make(i) for i in range(count)]
    wrong = []

    def work(i, start):
        start.wait()
        got = functions[i](tf.fill([50], float(i)))
        if not np.array_equal(got, np.full(50, i + 3.0)):
            wrong.append((i, got))

    for repetition in range(repetitions):
        starts = [threading.Event() for _ in range(count)]
        threads = [threading.Thread(target=work, args=(i, start)) for i, start in enumerate(starts)]
        for thread in threads:
            thread.start()
        order = np.random.default_rng(1000 * rank + repetition).permutation(count)
        for i in order:
            starts[i].set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_ranks_whose_programs_differ_do_not_wait_for_each_other(rank, size):
    # Many independent calls, with work around them that is different on every rank.
    @compiled
    def run(x):
        parts = []
        for i in range(6):
            y = x * float(i)
            for _ in range((rank + i) % 3):
                y = tf.linalg.matmul(y, y) + 1.0
            rows = hvd.reducescatter(y, op=hvd.Sum, name=f"rows{i}")
            parts.append(tf.reduce_sum(rows) + tf.reduce_sum(hvd.allreduce(y, name=f"all{i}")))
        return tf.add_n(parts)

    for _ in range(5):
        assert np.isfinite(run(tf.zeros([size + 1, size + 1])))


def test_tiny_numbers_are_summed_as_the_engine_sums_them(rank, size):
    # TensorFlow's and XLA's threads flush them to zero.
    tiny = np.full(5, 1e-40, np.float32)

    @compiled
    def run(x):
        return hvd.allreduce(x, op=hvd.Sum)

    np.testing.assert_array_equal(run(tiny).numpy().view(np.int32), (tiny * size).view(np.int32))


# --- errors -----------------------------------------------------------------------------------------


def test_a_mismatch_says_what_each_rank_sent_and_the_job_goes_on(rank, size):
    @compiled
    def run(x):
        return hvd.allreduce(x, name="mismatch")

    with pytest.raises(tf.errors.OpError, match=r"(?s)mismatch.*\[2\].*\[3\]") as caught:
        run(tf.ones(2 + (rank == 1)))
    if xla_program.is_asynchronous():
        assert isinstance(caught.value, tf.errors.FailedPreconditionError)
    np.testing.assert_array_equal(run(tf.ones(4)), np.ones(4))


def test_one_failed_call_among_many(rank, size):
    @compiled
    def run(x):
        good = [hvd.allreduce(x * i, name=f"good{i}") for i in range(5)]
        bad = hvd.broadcast(x, root_rank=rank, name="bad")
        return tf.add_n(good) + bad + hvd.allreduce(bad, name="after")

    for _ in range(3):
        with pytest.raises(tf.errors.OpError, match="bad"):
            run(tf.ones(1000))
    np.testing.assert_array_equal(hvd.allreduce(tf.ones(2)), [1, 1])


@pytest.mark.parametrize("collective", ["allgather", "alltoall"])
def test_first_dimensions_that_differ_are_refused(collective, rank, size):
    @compiled
    def run(x):
        return getattr(hvd, collective)(x, name=f"uneven.{collective}")

    rows = size * (1 + (rank == 0))
    with pytest.raises(tf.errors.OpError, match=r"(?s)uneven.*compiled for.*jit_compile=False"):
        run(tf.ones([rows, 2]))
    np.testing.assert_array_equal(hvd.allreduce(tf.ones(2)), [1, 1])


def test_unknown_shapes_are_refused(rank, size):
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 3])])
    def run(batch):
        return hvd.allreduce(batch)

    with pytest.raises(ValueError, match=r"(?s)batch.*\(None, 3\).*drop_remainder.*jit_compile"):
        run(tf.ones([2, 3]))


def test_what_can_not_be_compiled_is_refused(rank, size):
    def refused(text, call, error=ValueError):
        with pytest.raises(error, match=text):
            compiled(call)(tf.ones([2 * size, 2]))

    refused("not an even multiple", lambda x: hvd.alltoall(x[: size + 1]))
    refused("same number of rows", lambda x: hvd.alltoall(x, splits=[2] + [1] * (size - 1)))
    refused("not known", lambda x: hvd.alltoall(x, splits=tf.cast(x[:size, 0], tf.int32)))
    refused("add up to more", lambda x: hvd.alltoall(x, splits=[3] * size))
    refused("splits for", lambda x: hvd.alltoall(x, splits=[1] * (size + 1)))
    refused("scalar", lambda x: hvd.allgather(x[0, 0]))
    refused("uint32", lambda x: hvd.allreduce(tf.cast(x, tf.uint32)), TypeError)
    refused(
        "Min is not defined",
        lambda x: hvd.allreduce(tf.cast(x, tf.complex64), op=hvd.Min),
        tf.errors.OpError,
    )
    refused("invalid root rank", lambda x: hvd.broadcast(x, size + 3), tf.errors.OpError)


# --- Keras ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit_compile", [True, None], ids=["compiled", "default"])
def test_fit(jit_compile, rank, size):
    keras = tf.keras
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    seen = []

    class Reduced(keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            seen.append(xla.in_compiled_function())
            gradients, variables = zip(*grads_and_vars, strict=True)
            reduced = hvd.grouped_allreduce(list(gradients), name="gradients")
            pairs = list(zip(reduced, variables, strict=True))
            return super().apply_gradients(pairs, *args, **kwargs)

    x = np.random.default_rng(rank).normal(size=(64, 4)).astype(np.float32)
    model.build((None, 4))
    for weight in model.weights:
        weight.assign(hvd.broadcast(tf.convert_to_tensor(weight), 0))
    # By default Keras compiles where it finds an accelerator.
    options = {} if jit_compile is None else {"jit_compile": jit_compile}
    model.compile(optimizer=Reduced(0.01), loss="mse", **options)
    model.fit(x, x.sum(axis=1, keepdims=True), batch_size=16, epochs=2, verbose=0)
    assert seen and (all(seen) or not jit_compile)
    for weight in model.weights:
        everyones = hvd.allgather(tf.convert_to_tensor(weight)[None])
        np.testing.assert_array_equal(everyones[0], everyones[-1])
