"""Import path of Horovod 0.28: which MPI is installed; see horovod.runner.mpi_probe and mpi_launch."""

from __future__ import annotations

import os
from collections.abc import Mapping

from horovod.runner.mpi_probe import Flavour, find_mpirun

_OMPI_IMPL = "OpenMPI"
_SMPI_IMPL = "SpectrumMPI"
_MPICH_IMPL = "MPICH"
_IMPI_IMPL = "IntelMPI"
_UNKNOWN_IMPL = "Unknown"
_MISSING_IMPL = "Missing"

_NAMES = {
    Flavour.OPEN_MPI: _OMPI_IMPL,
    Flavour.SPECTRUM_MPI: _SMPI_IMPL,
    Flavour.MPICH: _MPICH_IMPL,
    Flavour.INTEL_MPI: _IMPI_IMPL,
    Flavour.UNKNOWN: _UNKNOWN_IMPL,
    Flavour.MISSING: _MISSING_IMPL,
}


def _get_mpi_implementation(env: Mapping[str, str] | None = None) -> str:
    return _NAMES[find_mpirun(os.environ if env is None else env).flavour]


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Whether there is an mpirun that horovodrun --mpi can use, in the PATH of `env` (os.environ)."""
    return _get_mpi_implementation(env) not in (_UNKNOWN_IMPL, _MISSING_IMPL)


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Whether mpirun is Open MPI's."""
    return _get_mpi_implementation(env) == _OMPI_IMPL


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Whether mpirun is IBM Spectrum MPI's."""
    return _get_mpi_implementation(env) == _SMPI_IMPL


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    """Whether mpirun is MPICH's."""
    return _get_mpi_implementation(env) == _MPICH_IMPL


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Whether mpirun is Intel MPI's."""
    return _get_mpi_implementation(env) == _IMPI_IMPL
