"""Importing the door: what it costs, and what it says where torch is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

COSTLY = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy", "tensorflow")


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_importing_the_door_loads_no_compiler_of_torch():
    script = (
        "import sys, torch; before = set(sys.modules); import horovod.torch as hvd; "
        "hvd.init(); hvd.allreduce(torch.ones(1)); hvd.shutdown(); "
        "print(*sorted(set(sys.modules) - before))"
    )
    result = run(script)
    assert result.returncode == 0, result.stderr
    loaded = result.stdout.split()
    assert "horovod.torch.ops" in loaded
    for name in COSTLY:
        assert not [module for module in loaded if module.startswith(name)]


def test_without_torch_the_import_says_what_to_do():
    script = "import sys; sys.modules['torch'] = None; import horovod.torch"
    result = run(script)
    assert result.returncode != 0
    assert "horovod.torch needs PyTorch" in result.stderr
    assert "pip install torch" in result.stderr


@pytest.mark.parametrize(
    "module",
    [
        "compression",
        "elastic",
        "elastic.sampler",
        "elastic.state",
        "functions",
        "mpi_ops",
        "ops",
        "optimizer",
        "sync_batch_norm",
    ],
)
def test_old_import_paths(module):
    __import__(f"horovod.torch.{module}")


def test_the_old_module_of_operations_also_has_the_helpers_it_had():
    from horovod.common import util
    from horovod.torch import mpi_ops

    for name in ("check_extension", "check_installed_version", "gpu_available"):
        assert getattr(mpi_ops, name) is getattr(util, name)
        assert name in mpi_ops.__all__
