"""A training job on all ranks of the test reads data that a job of two workers prepares."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.runner.common.service.compute_service import ComputeService
from horovod.runner.common.util.timeout import TimeoutException
from horovod.tensorflow.data import compute_worker
from horovod.tensorflow.data.compute_service import (
    TfDataServiceConfig,
    compute_worker_fn,
    send_to_data_service,
    tf_data_service,
)

LAUNCHES = ["-np 2"]
ENVIRONMENTS = ["main", "tensorflow1"]

KEY = b"some key"
ADDRESSES = {"lo": [("127.0.0.1", 9)], "eth0": [("192.0.2.1", 9), ("192.0.2.2", 9)]}


@pytest.fixture(scope="module", autouse=True)
def job():
    hvd.init()
    yield
    hvd.shutdown()


def barrier(name):
    hvd.allgather_object(None, name=name)


@contextmanager
def workers(*options):
    """Rank 0 starts a job of two workers; gives all ranks its configuration and, in the end, ends it."""
    name = options[-1] if options else "default"
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, name=name)
    configfile = Path(folder) / "compute.json"
    process = None
    if hvd.rank() == 0:
        # A job of its own: it must not take our identity for its own.
        environment = {k: v for k, v in os.environ.items() if "HOROVOD_" not in k}
        module = "horovod.tensorflow.data.compute_worker"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "horovod.runner", "-np", "2"),
                *(sys.executable, "-m", module, str(configfile), *options),
            ],
            env=environment,
        )
    try:
        config = TfDataServiceConfig.read(str(configfile), wait_for_file_creation=True)
        yield config
        barrier(f"{name} read")
        if process is not None:
            config.compute_client().shutdown()
            assert process.wait(timeout=30) == 0
            assert not configfile.exists()
    finally:
        if process is not None:
            process.kill()
            process.wait()
            shutil.rmtree(folder)
    barrier(f"{name} ended")


def elements(dataset):
    return [int(element) for element in dataset]


def elements_of_all_ranks(dataset, name):
    return hvd.allgather_object(elements(dataset), name=name)


def test_workers_prepare_data_for_all_ranks():
    with workers() as config:
        assert (config.dispatchers, config.workers_per_dispatcher) == (1, 2)
        numbers = tf.data.Dataset.range(500).map(lambda x: x * x)
        squares = [x * x for x in range(500)]

        # Each element goes to one rank, once; the next dataset is a pass of its own.
        for name in ("first", "second"):
            shared = numbers.send_to_data_service(config, hvd.rank(), reuse_dataset=True)
            parts = elements_of_all_ranks(shared, name)
            assert sorted(x for part in parts for x in part) == squares

        # Each rank gets everything.
        whole = send_to_data_service(numbers, config, hvd.rank(), hvd.size())
        assert sorted(elements(whole)) == squares

        # In turn: every rank gets as many batches as it asks for, and no other rank gets the same.
        endless = numbers.repeat().batch(5, drop_remainder=True)
        in_turn = endless.send_to_data_service(
            config, hvd.rank(), hvd.size(), processing_mode="parallel_epochs", round_robin=True
        )
        batches = [batch.numpy().tolist() for batch in in_turn.take(10)]
        assert len(batches) == 10
        assert all(len(batch) == 5 for batch in batches)
        # The pass is left while the others still read: ranks in turn wait for each other.
        barrier("turns")


def test_dispatchers_may_run_in_the_training_job():
    with workers("--dispatchers", "2", "--dispatcher-side", "training") as config:
        numbers = tf.data.Dataset.range(100)
        with pytest.raises(RuntimeError, match="tf_data_service"):
            numbers.send_to_data_service(config, hvd.rank())
        with tf_data_service(config, hvd.rank()) as address:
            assert address.startswith("grpc://")
            assert len(set(hvd.allgather_object(address, name="addresses"))) == 2
            prepared = numbers.apply(
                tf.data.experimental.service.distribute("distributed_epoch", address)
            )
            assert sorted(elements(prepared)) == list(range(100))
            barrier("all have read")


def test_training_with_prepared_data_gives_equal_models():
    """The whole way: a job of workers, two ranks, gradients averaged."""
    with workers("--timeout", "50") as config:
        assert config.timeout == 50
        rng = np.random.default_rng(7)
        x = rng.normal(size=(256, 3)).astype(np.float32)
        truth = np.float32([[1], [-2], [3]])
        dataset = tf.data.Dataset.from_tensor_slices((x, x @ truth)).repeat().batch(16)
        dataset = dataset.send_to_data_service(
            config, hvd.rank(), hvd.size(), processing_mode="parallel_epochs", reuse_dataset=True
        )
        weights = tf.Variable(tf.random.normal([3, 1], seed=hvd.rank()))
        hvd.broadcast_variables([weights], root_rank=0)
        for inputs, targets in dataset.take(100):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(inputs @ weights - targets))
            tape = hvd.DistributedGradientTape(tape)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
        np.testing.assert_allclose(weights.numpy(), truth, atol=1e-3)
        found = hvd.allgather_object(weights.numpy().tobytes(), name="weights")
        assert found[0] == found[1]


# --- configuration ---------------------------------------------------------------------------------


def make_config(**changes):
    values = {"dispatchers": 1, "workers_per_dispatcher": 2, "dispatcher_side": "compute"}
    return TfDataServiceConfig(**{**values, "addresses": ADDRESSES, "key": KEY, **changes})


def test_configuration_survives_dictionary_and_file(tmp_path):
    config = make_config(timeout=7)
    assert TfDataServiceConfig.from_dict(config.to_dict()) == config
    path = tmp_path / "compute.json"
    config.write(str(path))
    assert TfDataServiceConfig.read(str(path)) == config
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # the key is in it
    assert os.listdir(tmp_path) == ["compute.json"]
    make_config(timeout=8).write(str(path))
    assert TfDataServiceConfig.read(str(path)).timeout == 8


def test_key_is_not_shown():
    assert KEY.decode() not in repr(make_config())


def test_wrong_configurations_are_refused(tmp_path):
    for wrong in ({"dispatchers": 0}, {"workers_per_dispatcher": 0}, {"dispatcher_side": "both"}):
        with pytest.raises(ValueError):
            make_config(**wrong)
    with pytest.raises(FileNotFoundError):
        TfDataServiceConfig.read(str(tmp_path / "absent"))
    path = tmp_path / "compute.json"
    for text in ("", "[]", "{}", '{"key": "!"}', '{"key": "", "colour": 3}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"compute\.json"):
            TfDataServiceConfig.read(str(path))


def test_round_robin_needs_the_number_of_ranks():
    with pytest.raises(ValueError, match=r"size=hvd\.size"):
        tf.data.Dataset.range(3).send_to_data_service(make_config(), 0, round_robin=True)


def test_dispatchers_that_do_not_come_are_reported():
    service = ComputeService(1, 1, KEY)
    try:
        config = make_config(workers_per_dispatcher=1, addresses=service.addresses(), timeout=1)
        started = time.monotonic()
        with pytest.raises(TimeoutException, match=r"dispatcher 0 to register.*after 1 seconds"):
            tf.data.Dataset.range(3).send_to_data_service(config, hvd.rank())
        assert time.monotonic() - started < 10
    finally:
        service.shutdown()


def test_job_of_the_wrong_size_is_refused():
    with pytest.raises(ValueError, match=r"need a job of 6 process\(es\), and this one has 2"):
        compute_worker_fn(make_config(dispatchers=3))
    with pytest.raises(ValueError, match=r"processes \(2\).*multiple.*dispatchers \(3\)"):
        compute_worker.main(3, "compute", "unused", 1)
    barrier("sizes")  # or one rank would end the job while the other asks for its size
