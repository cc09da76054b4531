"""What the environment tells about ranks, and which variables may go to other hosts."""

from __future__ import annotations

import os
import re

# Shell functions and the old directory make no sense elsewhere; device masks and keys are private.
_NOT_EXPORTABLE = re.compile(
    r"BASH_FUNC_.*|OLDPWD|.*CUDA_VISIBLE_DEVICES|_HOROVOD_SECRET_KEY", re.DOTALL
)
_RANK_AND_SIZE = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def is_exportable(v: str) -> bool:
    """Whether the variable of this name may be sent to another host."""
    return _NOT_EXPORTABLE.fullmatch(v) is None


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and size as a launcher has set them; (0, 1) without one."""
    for rank, size in _RANK_AND_SIZE:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def is_kubeflow_mpi() -> bool:
    """Whether Kubeflow's MPI operator started us: its kubexec.sh stands in for ssh."""
    return os.environ.get("OMPI_MCA_plm_rsh_agent", "").endswith("kubexec.sh")  # noqa: SIM112 - MPI's own spelling
