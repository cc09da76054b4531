"""Started alone: `python train.py` is a job of size 1, which takes the same paths as any other."""

from __future__ import annotations

import os
import socket

from horovod.common.bootstrap.kind import Environment, Identity, OnWaiting

NAME = "nobody (a job of one process)"

# Variables that say there are more processes. To run alone in spite of them would give every rank
# the whole job, silently.
_SIZE_VARIABLES = {
    "HOROVOD_SIZE": "set by horovodrun",
    "OMPI_COMM_WORLD_SIZE": "set by mpirun",
    "PMI_SIZE": "set by mpiexec",
    "SLURM_STEP_NUM_TASKS": "set by srun",
}


def why_not(env: Environment) -> str | None:
    """None unless a variable says that there are more processes than this one."""
    for name, meaning in _SIZE_VARIABLES.items():
        if env.get(name, "1") not in ("", "1"):
            return f"{name}={env[name]} ({meaning})"
    if env.get("RANK") and env.get("WORLD_SIZE", "1") not in ("", "1"):
        return f"RANK={env['RANK']} and WORLD_SIZE={env['WORLD_SIZE']} are set"
    return None


def identity(env: Environment) -> Identity:
    """Returns rank 0 of 1."""
    return Identity(0, 1, 0, 1, 0, 1, env.get("HOROVOD_HOSTNAME") or socket.gethostname())


class _Session:
    """Nobody to meet."""

    def __init__(self) -> None:
        self.key = os.urandom(32)
        self.local_address = "127.0.0.1"

    def exchange(self, blob: bytes, timeout: float, on_waiting: OnWaiting) -> list[bytes]:
        del timeout, on_waiting
        return [blob]

    def close(self) -> None:
        pass


def open_session(env: Environment, round_number: int, timeout: float) -> _Session:
    """Returns a session with nobody else in it."""
    del env, round_number, timeout
    return _Session()
