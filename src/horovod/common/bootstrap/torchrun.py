"""Started by torchrun, or by anything that sets torch's variables; ranks meet at torch's TCPStore.

torch's store is neither encrypted nor authenticated: whoever can connect to MASTER_PORT can read the
key that rank 0 makes and puts there. This is as safe as torch.distributed itself and no safer; start
with horovodrun where that matters.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import msgpack

from horovod.common.bootstrap.kind import (
    Environment,
    Identity,
    OnWaiting,
    check_identity,
    whole_number,
)
from horovod.common.log import logger
from horovod.common.network import is_loopback, outward_address, route_address

if TYPE_CHECKING:
    from torch.distributed import TCPStore

NAME = "torchrun"
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_REPORT_SECONDS = 10.0

# The store is kept for the life of the process: when rank 0 serves it, the others may still be reading
# what was exchanged, and an init after shutdown uses it again.
_store: TCPStore | None = None


def why_not(env: Environment) -> str | None:
    """None when torch's variables are there, otherwise which of them are missing."""
    missing = [name for name in _NEEDED if not env.get(name)]
    return f"{', '.join(missing)} not set" if missing else None


def identity(env: Environment) -> Identity:
    """Returns the identity that torchrun gave; without LOCAL_* variables, one process per host.

    Raises:
        ValueError: a variable is not a number or contradicts another.
    """
    rank, size = whole_number(env, "RANK"), whole_number(env, "WORLD_SIZE")
    local_size = whole_number(env, "LOCAL_WORLD_SIZE", 1)
    hosts = -(-size // max(local_size, 1))
    return check_identity(
        Identity(
            rank,
            size,
            whole_number(env, "LOCAL_RANK", 0),
            local_size,
            whole_number(env, "GROUP_RANK", rank // max(local_size, 1)),
            whole_number(env, "GROUP_WORLD_SIZE", hosts),
            env.get("HOROVOD_HOSTNAME") or socket.gethostname(),
        )
    )


def _open_store(env: Environment, identity: Identity, timeout: float) -> TCPStore:
    global _store
    if _store is None:
        try:
            from torch.distributed import TCPStore
        except ImportError as error:
            raise ImportError(
                "This process was started by torchrun, but torch.distributed cannot be imported: "
                f"{error}. Install torch or start with horovodrun."
            ) from error
        agent_serves = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        address, port = env["MASTER_ADDR"], whole_number(env, "MASTER_PORT")
        try:
            _store = TCPStore(
                address,
                port,
                is_master=identity.rank == 0 and not agent_serves,
                timeout=timedelta(seconds=timeout),
                wait_for_workers=False,
                multi_tenant=True,  # the script's own init_process_group may share the port
            )
        except RuntimeError as error:  # the base of torch's network and store errors
            raise ConnectionError(f"torch's store at {address}:{port}: {error}") from error
    return _store


def _reachable_address(env: Environment, identity: Identity) -> str:
    """The route to the master; its own host may resolve the master's name to loopback."""
    address = route_address(env["MASTER_ADDR"], whole_number(env, "MASTER_PORT"))
    if is_loopback(address) and identity.cross_size > 1:
        return outward_address() or address
    return address


def _warn(missing: list[int]) -> None:
    logger.warning("Still waiting for rank(s) %s to call hvd.init().", missing)


class _Session:
    """One round of meeting through the store; rank 0 collects, so nobody reads from everybody."""

    def __init__(self, env: Environment, round_number: int, timeout: float) -> None:
        self._identity = identity(env)
        run, restart = (
            env.get("TORCHELASTIC_RUN_ID", ""),
            env.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )
        self._run = f"horovod/{run}/{restart}"
        self._prefix = f"{self._run}/{round_number}"
        self._previous = f"{self._run}/{round_number - 1}"
        self._store = _open_store(env, self._identity, timeout)
        self.local_address = _reachable_address(env, self._identity)
        self.key = self._agree_on_key(timeout)

    def _agree_on_key(self, timeout: float) -> bytes:
        name = f"{self._prefix}/key"
        if self._identity.rank == 0:
            self._store.set(name, os.urandom(32).hex())
        self._wait([name], {name: 0}, time.monotonic() + timeout, _warn)
        return bytes.fromhex(self._store.get(name).decode())

    def _blob_name(self, rank: int) -> str:
        return f"{self._prefix}/blob/{rank}"

    def _wait(
        self,
        names: list[str],
        owners: dict[str, int],
        deadline: float,
        on_waiting: OnWaiting,
    ) -> None:
        """Waits for `names`; while it does, reports whose `owners` entries are missing."""
        while True:
            remaining = deadline - time.monotonic()
            step = max(min(remaining, _REPORT_SECONDS), 0.01)
            try:
                self._store.wait(names, timedelta(seconds=step))
                return
            except RuntimeError as error:  # torch's way to say that the time is over
                missing = [rank for name, rank in owners.items() if not self._store.check([name])]
                if remaining <= _REPORT_SECONDS:
                    raise TimeoutError(f"rank(s) {missing} did not come") from error
                on_waiting(missing)

    def exchange(self, blob: bytes, timeout: float, on_waiting: OnWaiting) -> list[bytes]:
        rank, size = self._identity.rank, self._identity.size
        deadline = time.monotonic() + timeout
        owners = {self._blob_name(other): other for other in range(size)}
        everything = f"{self._prefix}/all"
        self._store.set(self._blob_name(rank), blob.hex())
        if rank == 0:
            self._wait(list(owners), owners, deadline, on_waiting)
            blobs = [bytes.fromhex(self._store.get(name).decode()) for name in owners]
            self._store.set(everything, msgpack.packb(blobs).hex())
            self._forget_previous_round()
            return blobs
        self._wait([everything], owners, deadline, on_waiting)
        return list(msgpack.unpackb(bytes.fromhex(self._store.get(everything).decode())))

    def _forget_previous_round(self) -> None:
        """Everybody has come to this round, so nobody reads the last one any more."""
        names = ["key", "all", *(f"blob/{rank}" for rank in range(self._identity.size))]
        for name in names:
            self._store.delete_key(f"{self._previous}/{name}")

    def close(self) -> None:
        pass


def open_session(env: Environment, round_number: int, timeout: float) -> _Session:
    """Joins torch's store within `timeout` seconds and agrees on a key."""
    return _Session(env, round_number, timeout)
