"""Started by mpirun or mpiexec of Open MPI, MPICH, Intel MPI or Spectrum MPI; ranks meet over MPI.

MPI serves only to meet: it carries each rank's address and the key of the job, once per `hvd.init()`.
Its messages are not encrypted, so the key is as safe as MPI's own traffic and no safer.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from typing import NamedTuple

import msgpack

from horovod.common import knobs
from horovod.common.bootstrap import libmpi
from horovod.common.bootstrap.kind import (
    Environment,
    Identity,
    OnWaiting,
    check_identity,
    whole_number,
)
from horovod.common.exceptions import HorovodInternalError
from horovod.common.log import logger
from horovod.common.network import outward_address, route_address

NAME = "mpirun"
KEY_BYTES = 32
DISCARD_PORT = 9  # only asked for the route to it


class _Variables(NamedTuple):
    """What one family of launchers sets."""

    rank: str
    size: str
    local_rank: str
    local_size: str


OPEN_MPI = _Variables(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
HYDRA = _Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


class _Meeting(NamedTuple):
    """What the ranks told each other the first time; kept for the life of the process."""

    communicator: libmpi.Communicator
    hosts: list[str]  # by rank
    names: list[str]  # by rank; a host's name need not be unique, its entry in `hosts` is
    key: bytes


# MPI can be initialised only once in a process.
_meeting: _Meeting | None = None


def _variables(env: Environment) -> _Variables | None:
    families = (OPEN_MPI, HYDRA)
    return next((each for each in families if env.get(each.rank) and env.get(each.size)), None)


def why_not(env: Environment) -> str | None:
    """None when the variables of an MPI launcher are there, otherwise what speaks against it."""
    names = _variables(env)
    if names is None:
        hint = ""
        if env.get("PMIX_RANK"):
            hint = f" (PMIX_RANK={env['PMIX_RANK']} alone does not tell how many ranks there are)"
        return f"neither {OPEN_MPI.rank} and {OPEN_MPI.size} nor {HYDRA.rank} and {HYDRA.size} are set{hint}"
    if env[names.size] == "1":
        return f"{names.size}=1, a job of one process"
    if env.get("TORCHELASTIC_RUN_ID"):
        return f"{names.rank} is set, but TORCHELASTIC_RUN_ID says that torchrun was started by it"
    # srun --mpi=pmi2 gives its own tasks PMI_RANK, without any MPI being there. Behind the agents of
    # mpiexec, which srun may have started too, Hydra's local variables are there.
    of_srun = env.get("SLURM_PROCID") == env[names.rank] and env.get("SLURM_STEP_ID")
    if names is HYDRA and of_srun and not env.get(HYDRA.local_rank):
        return f"{HYDRA.rank} was set by srun"
    return None


def _host(env: Environment) -> str:
    return env.get("HOROVOD_HOSTNAME") or socket.gethostname()


def identity(env: Environment) -> Identity:
    """Returns the identity that mpirun gave. With several hosts the first call is collective.

    No launcher of MPI says which hosts there are, so ranks tell each other over MPI.

    Raises:
        ValueError: a variable is not a number or contradicts another.
        ImportError: the MPI library was not found.
        HorovodInternalError: the other ranks could not be met.
    """
    names = _variables(env)
    assert names is not None
    rank, size = whole_number(env, names.rank), whole_number(env, names.size)
    if env.get(names.local_rank) and env.get(names.local_size):
        local_rank, local_size = (
            whole_number(env, name) for name in (names.local_rank, names.local_size)
        )
        if local_size == size:
            local = Identity(rank, size, local_rank, local_size, 0, 1, _host(env))
            return check_identity(local)
        return place(rank, _meet_or_fail(env).hosts, _host(env), local_rank)
    return place(rank, _meet_or_fail(env).hosts, _host(env))


def place(rank: int, hosts: list[str], name: str, local_rank: int | None = None) -> Identity:
    """Returns who `rank` is, when the ranks run on these hosts; ranks of a host are in order.

    Args:
        rank: of this process.
        hosts: the host of every rank.
        name: what this process calls its host.
        local_rank: if it is known and not the place among the ranks of the host.
    """
    groups: dict[str, list[int]] = {}
    for other, host in enumerate(hosts):
        groups.setdefault(host, []).append(other)
    own = groups[hosts[rank]]
    local_rank = own.index(rank) if local_rank is None else local_rank
    peers = [host for host, ranks in groups.items() if len(ranks) > local_rank]
    if hosts[rank] not in peers:
        raise ValueError(
            f"rank {rank} has local rank {local_rank}, but only {len(own)} rank(s) run on host {name}"
        )
    cross_rank, cross_size = peers.index(hosts[rank]), len(peers)
    return check_identity(
        Identity(rank, len(hosts), local_rank, len(own), cross_rank, cross_size, name)
    )


def _meet_or_fail(env: Environment) -> _Meeting:
    try:
        return _meet(env, knobs.start_timeout(env))
    except OSError as error:
        raise HorovodInternalError(
            f"Horovod initialization failed: the ranks cannot meet over MPI: {error}."
        ) from error


def _warn(missing: list[int]) -> None:
    logger.warning("Still waiting for rank(s) %s to call hvd.init().", missing)


def _meet(env: Environment, timeout: float) -> _Meeting:
    """Initialises MPI if need be; hosts and key of the job, exchanged at the first call."""
    global _meeting
    if _meeting is not None:
        return _meeting
    names = _variables(env)
    assert names is not None
    deadline = time.monotonic() + timeout
    library = libmpi.load(env, names is OPEN_MPI)
    threads = not knobs.value_of("HOROVOD_MPI_THREADS_DISABLE", env)
    if library.initialize(threads):
        atexit.register(_finalize, library, os.getpid())
    communicator = libmpi.Communicator(library, deadline)
    seen = (communicator.rank, communicator.size)
    told = (whole_number(env, names.rank), whole_number(env, names.size))
    if seen != told:
        raise ConnectionError(
            f"{names.rank} and {names.size} say rank {told[0]} of {told[1]}, but the MPI library "
            f"{library.path} says rank {seen[0]} of {seen[1]}: it does not belong to the mpirun that "
            "started this process. Put the folder of the right one first in LD_LIBRARY_PATH, or start "
            "with horovodrun"
        )
    own = msgpack.packb([_host(env), _machine(env), os.urandom(KEY_BYTES)])
    remaining = max(deadline - time.monotonic(), 0.0)
    ranks = [msgpack.unpackb(blob) for blob in communicator.exchange(own, remaining, _warn)]
    names_, hosts, keys = (list(column) for column in zip(*ranks, strict=True))
    _meeting = _Meeting(communicator, hosts, names_, keys[0])
    return _meeting


def _machine(env: Environment) -> str:
    """Tells hosts apart that have the same name."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:  # no /proc: the name has to do
        boot = ""
    return f"{_host(env)}/{boot}"


def _finalize(library: libmpi.Library, process: int) -> None:
    """At exit, where MPI was initialised here and nobody has ended it.

    Not after an exception: MPI_Finalize waits for the other ranks, which may be waiting for this one.
    A process that ends without it makes mpirun end the job.
    """
    failed = getattr(sys, "last_value", None) is not None
    if os.getpid() == process and not failed and not library.flag("Finalized"):
        library.call("Finalize")


def _local_address(meeting: _Meeting) -> str:
    """Loopback when all ranks are here, otherwise the address of the route to the other hosts."""
    own = meeting.hosts[meeting.communicator.rank]
    others = [name for host, name in zip(meeting.hosts, meeting.names, strict=True) if host != own]
    if not others:
        return "127.0.0.1"
    address = outward_address()
    if address is not None:
        return address
    try:
        return route_address(others[0], DISCARD_PORT)
    except OSError as error:
        raise ConnectionError(
            f"this host has no default route and none to host {others[0]}: {error}"
        ) from error


class _Session:
    """One round of meeting over the communicator of this process."""

    def __init__(self, env: Environment, timeout: float) -> None:
        meeting = _meet(env, timeout)
        self.key = meeting.key
        self.local_address = _local_address(meeting)
        self._communicator = meeting.communicator

    def exchange(self, blob: bytes, timeout: float, on_waiting: OnWaiting) -> list[bytes]:
        return self._communicator.exchange(blob, timeout, on_waiting)

    def close(self) -> None:
        pass


def open_session(env: Environment, round_number: int, timeout: float) -> _Session:
    """Loads and initialises MPI if need be; the first call in a process is collective.

    Rounds need no number: MPI keeps the order of the messages between two ranks.
    """
    del round_number
    return _Session(env, timeout)
