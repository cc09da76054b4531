"""What importing the Keras doors needs, and what is in them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest


def run(code, backend):
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_tensorflow_is_not_imported_where_keras_runs_on_something_else(backend):
    code = (
        "import sys, horovod.keras as hvd\n"
        "hvd.callbacks.MetricAverageCallback()\n"
        "assert hvd.Compression.fp16\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    result = run(code, backend)
    assert result.returncode == 0, result.stderr


def test_another_backend_is_refused():
    result = run("import horovod.keras", "numpy")
    assert "works with Keras on the backends tensorflow, torch, jax" in result.stderr
    assert "KERAS_BACKEND" in result.stderr


# Names and order of arguments as in Horovod 0.28.1; ours follow.
SIGNATURES = {
    "DistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op num_groups groups",
    "PartialDistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients groups process_set "
    "local_layers scale_local_gradients",
    "broadcast_global_variables": "root_rank",
    "allreduce": "value name average prescale_factor postscale_factor op compression",
    "allgather": "value name",
    "broadcast": "value root_rank name",
    "reducescatter": "value name op",
    "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank device local_variables",
    "callbacks.MetricAverageCallback": "device",
    "callbacks.LearningRateScheduleCallback": "initial_lr multiplier start_epoch end_epoch staircase "
    "momentum_correction steps_per_epoch",
    "callbacks.LearningRateWarmupCallback": "initial_lr warmup_epochs momentum_correction steps_per_epoch "
    "verbose",
    "callbacks.BestModelCheckpoint": "monitor verbose mode save_freq",
}
TENSORFLOW_SIGNATURES = {
    **SIGNATURES,
    "DistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients num_groups groups "
    "process_set scale_local_gradients",
    "callbacks.BestModelCheckpoint": "monitor verbose save_weights_only mode save_freq",
}
del TENSORFLOW_SIGNATURES["PartialDistributedOptimizer"]


def found(door, name):
    for part in name.split("."):
        door = getattr(door, part)
    return list(inspect.signature(door).parameters)


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_of_the_keras_door(name):
    import horovod.keras as hvd

    wanted = SIGNATURES[name].split()
    assert found(hvd, name)[: len(wanted)] == wanted


@pytest.mark.parametrize("name", TENSORFLOW_SIGNATURES)
def test_arguments_of_the_tensorflow_keras_door(name):
    import horovod.tensorflow.keras as hvd

    assert found(hvd, name) == TENSORFLOW_SIGNATURES[name].split()


def test_names():
    import horovod.keras as hvd
    import horovod.tensorflow.keras as tf_hvd

    assert set(tf_hvd.__all__) == set(hvd.__all__) - {"Adasum", "PartialDistributedOptimizer"}
    for door in (hvd, tf_hvd):
        assert all(hasattr(door, name) for name in door.__all__)


ELASTIC = [
    "KerasState",
    "CommitStateCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]


@pytest.mark.parametrize("name", ELASTIC)
def test_elastic_classes_say_that_they_are_not_available(name):
    import horovod.keras as hvd
    import horovod.tensorflow.keras as tf_hvd

    for door in (hvd, tf_hvd):
        with pytest.raises(NotImplementedError, match=r"^Elastic training is not available yet"):
            getattr(door.elastic, name)(None)
        with pytest.raises(NotImplementedError, match=r"keras\.elastic\.run"):
            door.elastic.run(print)
