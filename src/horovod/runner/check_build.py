"""The report of --check-build. It looks for packages without importing any of them."""

from __future__ import annotations

import importlib.util
import shutil
from typing import NamedTuple

import horovod
from horovod.runner.mpi_probe import LAUNCHERS


class _Line(NamedTuple):
    name: str
    present: bool
    reason: str = ""


# What the report calls it, the package, our door to it.
_FRAMEWORKS = (
    ("TensorFlow", "tensorflow", "horovod.tensorflow"),
    ("PyTorch", "torch", "horovod.torch"),
    ("MXNet", "mxnet", "horovod.mxnet"),
)
_OPERATIONS = (
    _Line("NCCL", False, "not available yet"),
    _Line("DDL", False, "discontinued"),
    _Line("CCL", False, "not available yet"),
    _Line("MPI", False, "not available yet"),
    _Line("Gloo", True, "built in"),
)


def check_build(verbose: bool = False) -> str:
    """The report; with `verbose` every line says why."""
    blocks = (
        ("Frameworks", tuple(_framework(*framework) for framework in _FRAMEWORKS)),
        ("Controllers", (_mpi_controller(), _Line("Gloo", True, "built in"))),
        ("Tensor Operations", _OPERATIONS),
    )
    lines = [f"Horovod v{horovod.__version__}:"]
    for heading, entries in blocks:
        lines += ["", f"Available {heading}:"]
        for name, present, reason in entries:
            why = f" ({reason})" if verbose and reason else ""
            lines.append(f"    [{'X' if present else ' '}] {name}{why}")
    return "\n".join(lines)


def _mpi_controller() -> _Line:
    """Ranks can meet over MPI, for `--mpi`, where there is an mpirun; tensors travel as ever."""
    found = next(filter(None, map(shutil.which, LAUNCHERS)), None)
    reason = f"neither {' nor '.join(LAUNCHERS)} in PATH" if found is None else f"found {found}"
    return _Line("MPI", found is not None, reason)


def _framework(name: str, package: str, door: str) -> _Line:
    if importlib.util.find_spec(door) is None:
        return _Line(name, False, f"{door} does not exist yet")
    if importlib.util.find_spec(package) is None:
        return _Line(name, False, f"{package} is not installed")
    return _Line(name, True, f"{package} is installed")
