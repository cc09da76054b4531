"""The TensorFlow door's ops in eager mode, in `tf.function` and in sessions: values, gradients, errors.

Values over all dtypes and sizes are the conformance suite's; here is what only this door has.
"""

from __future__ import annotations

import os
import random
import resource
import threading

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod import _core

LAUNCHES = {"main": ["-np 1", "-np 2", "-np 3"], "tensorflow1": ["-np 2"]}

v1 = tf.compat.v1
tf.config.threading.set_inter_op_parallelism_threads(1)


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


@pytest.fixture
def several(size):
    if size < 2:
        pytest.skip("needs another rank")


def in_session(build, **config):
    """Runs what `build` returns in a session of TensorFlow 1."""
    with tf.Graph().as_default():
        fetches = build()
        with v1.Session(config=v1.ConfigProto(**config)) as session:
            session.run(v1.global_variables_initializer())
            return session.run(fetches)


def eagerly(build):
    return tf.nest.map_structure(np.array, build())


def as_function(build):
    return tf.nest.map_structure(np.array, tf.function(build)())


MODES = pytest.mark.parametrize("run", [eagerly, as_function, in_session])


@MODES
def test_every_collective_in_every_mode(run, rank, size):
    mine = np.arange(2 * size, dtype=np.float32) * (rank + 1)
    everyones = [np.arange(2 * size, dtype=np.float32) * (r + 1) for r in range(size)]

    def build():
        x = tf.constant(mine)
        return {
            "average": hvd.allreduce(x),
            "sum": hvd.allreduce(x, op=hvd.Sum, name="sum"),
            "group": hvd.grouped_allreduce([x, x * 2], op=hvd.Sum),
            "gathered": hvd.allgather(x),
            "gathered group": hvd.grouped_allgather([x, x + 1]),
            "broadcast": hvd.broadcast(x, root_rank=size - 1),
            "alltoall": hvd.alltoall(x),
            "scattered": hvd.reducescatter(x, op=hvd.Sum),
            "scattered group": hvd.grouped_reducescatter([x, x * 2], op=hvd.Sum),
        }

    got = run(build)
    total = np.sum(everyones, axis=0)
    np.testing.assert_allclose(got["average"], total / size, rtol=1e-6)
    np.testing.assert_array_equal(got["sum"], total)
    np.testing.assert_array_equal(got["group"][1], 2 * total)
    np.testing.assert_array_equal(got["gathered"], np.concatenate(everyones))
    np.testing.assert_array_equal(got["gathered group"][1], np.concatenate(everyones) + 1)
    np.testing.assert_array_equal(got["broadcast"], everyones[-1])
    block = slice(2 * rank, 2 * rank + 2)
    np.testing.assert_array_equal(got["alltoall"], np.concatenate([e[block] for e in everyones]))
    np.testing.assert_array_equal(got["scattered"], total[block])
    np.testing.assert_array_equal(got["scattered group"][1], 2 * total[block])


@MODES
def test_who_am_i_at_run_time(run, rank, size):
    def build():
        return (
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.process_set_included_op(),
        )

    assert [int(v) for v in run(build)] == [rank, size, hvd.local_rank(), hvd.local_size(), 1]


def test_identity_within_a_set(rank, several):
    last = hvd.add_process_set([hvd.size() - 1])
    assert int(hvd.size_op(last.process_set_id)) == 1
    assert int(hvd.process_set_included_op(last.process_set_id)) == int(rank == hvd.size() - 1)
    hvd.remove_process_set(last)
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not exist"):
        hvd.size_op(77)


# --- gradients ------------------------------------------------------------------------------------


def gradient_of(run, call, values):
    """Returns d(sum of the call's result times a rank-dependent weight)/dx."""

    def build():
        x = tf.constant(values)
        if tf.executing_eagerly():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = call(x)
                loss = tf.reduce_sum(y * (hvd.rank() + 1.0))
            return tape.gradient(loss, x)
        y = call(x)
        return tf.gradients(tf.reduce_sum(y * (hvd.rank() + 1.0)), x)[0]

    return run(build)


@MODES
def test_gradients(run, rank, size):
    values = np.arange(2.0 * size * 3, dtype=np.float64).reshape(2 * size, 3)
    weights = np.arange(1.0, size + 1)
    mean, total = weights.mean(), weights.sum()

    def check(call, expected):
        np.testing.assert_allclose(
            gradient_of(run, call, values), np.broadcast_to(expected, values.shape)
        )

    check(lambda x: hvd.allreduce(x, op=hvd.Sum), total)
    check(lambda x: hvd.allreduce(x, op=hvd.Average), mean)
    check(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0), 2 * total)
    check(lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1], total)
    check(lambda x: hvd.allgather(x), mean)
    check(lambda x: hvd.grouped_allgather([x, 2 * x])[1], 2 * mean)
    check(lambda x: hvd.broadcast(x, root_rank=0), mean if rank == 0 else 0.0)
    check(lambda x: hvd.alltoall(x), np.repeat(weights, 2)[:, None])
    check(lambda x: hvd.reducescatter(x, op=hvd.Sum), np.repeat(weights, 2)[:, None] * size)
    check(lambda x: hvd.reducescatter(x, op=hvd.Average), np.repeat(weights, 2)[:, None])


def test_gradient_of_a_gathered_tensor_with_unknown_rows(rank, size):
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def gradient(x):
        return tf.gradients(tf.reduce_sum(hvd.allgather(x)), x)[0]

    for rows in (rank + 1, 3):
        got = gradient(tf.ones([rows, 2]))
        np.testing.assert_array_equal(got, np.ones([rows, 2]))


def test_gradients_within_a_process_set(rank, size):
    if size < 3:
        pytest.skip("needs a rank outside the set")
    pair = hvd.add_process_set([0, hvd.size() - 1])
    if pair.included():
        x = tf.Variable([1.0, 2.0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(hvd.allgather(x, process_set=pair) * (pair.rank() + 1.0))
        np.testing.assert_allclose(tape.gradient(loss, x), [1.5, 1.5])
    hvd.remove_process_set(pair)


# --- IndexedSlices, compression, variables -------------------------------------------------------


@MODES
def test_indexed_slices_are_gathered(run, rank, size):
    def build():
        slices = tf.IndexedSlices(
            tf.ones([rank + 1, 2]) * (rank + 1.0), tf.range(rank + 1), dense_shape=[size, 2]
        )
        reduced = hvd.allreduce(slices, op=hvd.Average)
        assert isinstance(reduced, tf.IndexedSlices)
        return tf.convert_to_tensor(reduced)

    expected = np.zeros([size, 2])
    for r in range(size):
        expected[: r + 1] += (r + 1.0) / size
    np.testing.assert_allclose(run(build), expected, rtol=1e-6)


@pytest.mark.parametrize("wrong", [{"op": hvd.Max}, {"op": hvd.Sum, "prescale_factor": 2.0}])
def test_indexed_slices_take_sums_only(wrong):
    slices = tf.IndexedSlices(tf.ones([1, 2]), [0], dense_shape=[2, 2])
    with pytest.raises(NotImplementedError, match="IndexedSlices"):
        hvd.allreduce(slices, **wrong)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_compression(name, size):
    compression = getattr(hvd.Compression, name)
    got = hvd.allreduce(tf.constant([0.5, 3.0], tf.float64), compression=compression, op=hvd.Sum)
    assert got.dtype == tf.float64
    np.testing.assert_array_equal(got, np.array([0.5, 3.0]) * size)
    whole = hvd.allreduce(tf.constant([1, 2]), compression=compression, op=hvd.Sum)
    np.testing.assert_array_equal(whole, np.array([1, 2]) * size)


@MODES
def test_groups_may_mix_types_and_sparse(run, size):
    def build():
        sparse = tf.IndexedSlices(tf.ones([1, 2]), [0], dense_shape=[2, 2])
        mixed = [tf.constant([1.0]), tf.constant([2]), sparse, tf.constant([3.0])]
        reduced = hvd.grouped_allreduce(mixed, op=hvd.Sum, name="mixed")
        return [tf.convert_to_tensor(t) for t in reduced]

    got = run(build)
    assert [float(np.ravel(t)[0]) for t in got] == [size, 2.0 * size, size, 3.0 * size]
    assert hvd.grouped_allreduce([]) == []


def test_broadcast_of_variables(rank, size):
    variables = [tf.Variable(tf.fill([3], float(rank))), tf.Variable(rank, dtype=tf.int64)]
    hvd.broadcast_variables(variables, root_rank=size - 1)
    np.testing.assert_array_equal(variables[0], [size - 1.0] * 3)
    assert int(variables[1]) == size - 1
    variables[0].assign(tf.fill([3], float(rank)))
    values = hvd.broadcast_(variables, root_rank=0)
    np.testing.assert_array_equal(values[0], [0.0] * 3)
    np.testing.assert_array_equal(variables[0], [0.0] * 3)


def test_broadcast_of_unsigned_counters(rank):
    counter = tf.Variable(tf.constant([2**31 + rank, 5], tf.uint32))
    hvd.broadcast_variables([counter], root_rank=0)
    np.testing.assert_array_equal(counter, np.array([2**31, 5], np.uint32))


@pytest.mark.parametrize("use_resource", [True, False])
def test_broadcast_of_global_variables_in_a_session(rank, use_resource):
    def build():
        variable = v1.get_variable(
            "v", initializer=tf.fill([2], float(rank)), use_resource=use_resource
        )
        other = v1.get_variable("w", initializer=float(rank), use_resource=use_resource)
        hvd.broadcast_variables([other], 0)
        with tf.control_dependencies([hvd.broadcast_global_variables(hvd.size() - 1)]):
            return variable.read_value() if use_resource else tf.identity(variable) * 1.0

    if use_resource:
        np.testing.assert_array_equal(in_session(build), [hvd.size() - 1.0] * 2)
    else:
        with tf.Graph().as_default(), v1.Session() as session:
            variable = v1.get_variable(
                "v", initializer=tf.fill([2], float(rank)), use_resource=False
            )
            update = hvd.broadcast_global_variables(0)
            session.run(v1.global_variables_initializer())
            session.run(update)
            np.testing.assert_array_equal(session.run(variable), [0.0, 0.0])


def test_the_hook_broadcasts_after_initialisation(rank):
    with tf.Graph().as_default():
        variable = v1.get_variable("v", initializer=float(rank) + 1.0)
        v1.train.get_or_create_global_step()
        hook = hvd.BroadcastGlobalVariablesHook(0)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            assert session.run(variable) == 1.0


def test_eager_mode_has_no_global_variables():
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)


def test_objects(rank, size):
    assert hvd.broadcast_object({"rank": rank}, root_rank=size - 1) == {"rank": size - 1}
    send = hvd.broadcast_object_fn(root_rank=0)
    assert [send(rank), send("text")] == [0, "text"]
    assert hvd.allgather_object(rank) == list(range(size))


# --- errors ---------------------------------------------------------------------------------------


@MODES
def test_classes_of_errors(run, rank, several):
    odd = rank == hvd.size() - 1
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="Mismatched ALLREDUCE tensor shapes"
    ):
        run(lambda: hvd.allreduce(tf.ones([5 if odd else 4]), name="shapes"))
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched BROADCAST root ranks"):
        run(lambda: hvd.broadcast(tf.ones([2]), root_rank=int(odd), name="roots"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="invalid root rank"):
        run(lambda: hvd.broadcast(tf.ones([2]), root_rank=99))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Number of entries in splits"):
        run(lambda: hvd.alltoall(tf.ones([4]), splits=[1] * (hvd.size() + 1)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank-zero tensor"):
        run(lambda: hvd.reducescatter(tf.constant(1.0)))
    with pytest.raises(tf.errors.AbortedError, match="only supports AVERAGE and SUM"):
        run(lambda: hvd.reducescatter(tf.ones([4]), op=hvd.Max))


def test_a_rank_outside_the_set(rank, several):
    first = hvd.add_process_set([0])
    if rank != 0:
        with pytest.raises(tf.errors.InvalidArgumentError, match="not a member"):
            hvd.allreduce(tf.ones([2]), process_set=first)
    hvd.remove_process_set(first)
    with pytest.raises(ValueError, match="does not exist"):
        hvd.allreduce(tf.ones([2]), process_set=first)


def test_arguments_that_python_refuses():
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(tf.ones([2]), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="not one of"):
        hvd.allreduce(tf.ones([2]), op=9)
    with pytest.raises(ValueError, match="needs variables"):
        hvd.broadcast_([tf.ones([2])], 0)
    with pytest.deprecated_call():
        hvd.allreduce(tf.ones([2]), average=False)


# --- many at once --------------------------------------------------------------------------------

MANY = 500


def in_random_order(rank, round_number):
    order = list(range(MANY))
    random.Random(1000 * round_number + rank).shuffle(order)
    return order


def test_many_in_flight_in_a_session_with_one_thread(rank, size):
    def build():
        fetches = {}
        for i in in_random_order(rank, 0):
            fetches[i] = hvd.allreduce(tf.constant([float(i)]), op=hvd.Sum, name=f"many_{i}")
        return fetches

    with tf.Graph().as_default():
        fetches = build()
        config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
        with v1.Session(config=config) as session:
            for _ in range(20):
                got = session.run(fetches)
                assert all(got[i][0] == i * size for i in range(MANY))


def test_many_in_flight_in_a_function(rank, size):
    def body():
        results = [None] * MANY
        for i in in_random_order(rank, 1):
            results[i] = hvd.allreduce(tf.constant([float(i)]), op=hvd.Sum, name=f"fn_{i}")
        return tf.concat(results, 0)

    call = tf.function(body)
    for _ in range(20):
        np.testing.assert_array_equal(call(), np.arange(MANY) * size)


def test_many_threads_in_eager_mode(rank, size):
    for round_number in range(20):
        results = {}

        def one(i, results=results):
            results[i] = hvd.allreduce(tf.constant([float(i)]), op=hvd.Sum, name=f"eager_{i}")

        order = in_random_order(rank, round_number)
        threads = [threading.Thread(target=one, args=(i,)) for i in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(float(results[i][0]) == i * size for i in order)


# --- memory ---------------------------------------------------------------------------------------


def test_nothing_is_copied_on_the_way(size):
    """The engine writes into memory that TensorFlow allocated, so it allocates no outputs itself."""
    before = _core.counters()["output_bytes_allocated"]
    x = tf.ones([size * 1000])
    hvd.allreduce(x)
    hvd.broadcast(x, 0)
    hvd.reducescatter(x)
    hvd.allgather(x)
    assert _core.counters()["output_bytes_allocated"] == before


def test_a_wrapped_tape_every_step_leaks_nothing():
    weights = [tf.Variable(tf.ones([16, 16])) for _ in range(4)]
    x = tf.ones([2, 16])

    def steps(count):
        for _ in range(count):
            with tf.GradientTape() as tape:
                y = x
                for w in weights:
                    y = tf.matmul(y, w)
                loss = tf.reduce_mean(y)
            hvd.DistributedGradientTape(tape).gradient(loss, weights)

    def resident_kib():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize() // 1024

    steps(500)
    before = resident_kib()
    steps(2000)
    assert resident_kib() - before < 2 * 1024
