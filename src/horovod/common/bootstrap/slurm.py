"""Started by srun: one process per task of a step. Rank 0 serves the meeting on the step's first node.

The key of the job is `_HOROVOD_SECRET_KEY` where it is set, otherwise an HMAC of the job and step with
a secret of the user that lies in the home folder, readable by nobody else. Job and step numbers are no
secret, but without the file the key can't be computed from them, and it differs from step to step.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import os
import socket
import threading
import time
from pathlib import Path

from horovod.common.bootstrap import user_secret
from horovod.common.bootstrap.gather_server import BACKLOG, GatherServer
from horovod.common.bootstrap.kind import (
    Environment,
    Identity,
    OnWaiting,
    check_identity,
    whole_number,
)
from horovod.common.log import logger
from horovod.common.network import is_loopback, outward_address
from horovod.common.rendezvous import REPORT_SECONDS, AuthenticationError, RendezvousClient
from horovod.common.slurm_notation import nodes, tasks_per_node

NAME = "srun"
KEY_VARIABLE = "_HOROVOD_SECRET_KEY"
_NEEDED = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
# Below Linux's range of ephemeral ports (32768 and up), so that no outgoing connection holds one.
FIRST_PORT, PORTS_END = 20000, 32000
PORT_CANDIDATES = 8
TRY_SECONDS = 5.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


def _size(env: Environment) -> int:
    name = "SLURM_STEP_NUM_TASKS" if env.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    return whole_number(env, name, 1)


def why_not(env: Environment) -> str | None:
    """None when this process is a task of a step of several, otherwise what speaks against it."""
    missing = [name for name in _NEEDED if not env.get(name)]
    if missing:
        return f"{', '.join(missing)} not set"
    return "the step has one task" if _size(env) == 1 else None


# --- who ---------------------------------------------------------------------------------------


def _counts(env: Environment) -> list[int]:
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if env.get(name):
            return tasks_per_node(env[name])
    raise ValueError("neither SLURM_STEP_TASKS_PER_NODE nor SLURM_TASKS_PER_NODE is set")


def identity(env: Environment) -> Identity:
    """Returns the identity that srun gave.

    Raises:
        ValueError: a variable is missing, not in SLURM's notation or contradicts another.
    """
    rank, local_rank, node = (
        whole_number(env, f"SLURM_{part}") for part in ("PROCID", "LOCALID", "NODEID")
    )
    counts = _counts(env)
    if sum(counts) != _size(env) or node >= len(counts):
        raise ValueError(
            f"SLURM's variables contradict each other: {_size(env)} tasks, {counts} per node, and this "
            f"one runs on node {node}"
        )
    peers = [count > local_rank for count in counts]
    host = env.get("HOROVOD_HOSTNAME") or env.get("SLURMD_NODENAME") or socket.gethostname()
    numbers = (rank, _size(env), local_rank, counts[node], sum(peers[:node]), sum(peers))
    return check_identity(Identity(*numbers, host))


# --- key and port ------------------------------------------------------------------------------


def _step(env: Environment) -> str:
    """Names this run of the step; a job that SLURM has requeued is another one."""
    restart = env.get("SLURM_RESTART_COUNT") or "0"
    return f"slurm {env['SLURM_JOB_ID']}.{env['SLURM_STEP_ID']} {restart}"


def job_key(env: Environment, secret_path: Path) -> bytes:
    """Returns the key of this step.

    Raises:
        ValueError: `_HOROVOD_SECRET_KEY` is not base64.
        OSError: the secret can't be made, or isn't private; see `user_secret.read_or_make`.
    """
    if env.get(KEY_VARIABLE):
        try:
            return base64.b64decode(env[KEY_VARIABLE], validate=True)
        except binascii.Error:
            raise ValueError(f"{KEY_VARIABLE} is not valid base64") from None
    return hmac.digest(user_secret.read_or_make(secret_path), _step(env).encode(), "sha256")


def ports(env: Environment) -> list[int]:
    """Returns the ports that rank 0 tries in turn.

    They don't depend on the key, so that ranks with different keys meet and can say so. Someone who
    takes all of them only keeps the step from starting.
    """
    candidates = []
    for number in range(PORT_CANDIDATES):
        digest = hmac.digest(b"port", f"{_step(env)} {number}".encode(), "sha256")
        candidates.append(FIRST_PORT + int.from_bytes(digest[:8], "big") % (PORTS_END - FIRST_PORT))
    return candidates


def _listen(env: Environment, address: str) -> socket.socket:
    """Returns a listening socket on the first free port."""
    for port in ports(env):
        try:
            return socket.create_server((address, port), backlog=BACKLOG)
        except OSError as error:
            refusal = error
    raise ConnectionError(
        f"rank 0 cannot listen on any of the ports {ports(env)} of this step: {refusal}"
    )


# --- meeting -----------------------------------------------------------------------------------

# Rank 0's server, for the life of the process: see GatherServer.
_server: GatherServer | None = None


def _after_fork_in_child() -> None:
    global _server
    if _server is not None:
        _server.close_copy()
        _server = None


os.register_at_fork(after_in_child=_after_fork_in_child)


class _ServerSession:
    """Rank 0's side of a round."""

    def __init__(self, env: Environment, round_number: int, key: bytes, who: Identity) -> None:
        global _server
        one_node = len(_counts(env)) == 1
        if _server is None:
            _server = GatherServer(_listen(env, "127.0.0.1" if one_node else ""), key, who.size)
        self.key = key
        self._scope = f"init/{round_number}"
        self._server = _server
        self.local_address = "127.0.0.1" if one_node else _address_of_rank_0(env)

    def exchange(self, blob: bytes, timeout: float, on_waiting: OnWaiting) -> list[bytes]:
        try:
            return self._server.exchange(self._scope, blob, timeout, on_waiting)
        except TimeoutError as error:
            if self._server.met_strangers:
                raise TimeoutError(
                    f"{error}; somebody came who did not prove to hold the key: {_fix()}"
                ) from error
            raise

    def close(self) -> None:
        pass


def _address_of_rank_0(env: Environment) -> str:
    """The one that the others come to, or that of the default route where a name stands for loopback."""
    name = _first_node(env)
    with contextlib.suppress(OSError):  # its own node need not know the name
        address = socket.gethostbyname(name)
        if not is_loopback(address):
            return address
    outward = outward_address()
    if outward is None:
        raise ConnectionError(
            f"on this node its name {name} stands for no address by which other nodes can reach it, and "
            "there is no default route"
        )
    return outward


def _first_node(env: Environment) -> str:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"):
        if env.get(name):
            return next(nodes(env[name]))
    raise ValueError("neither SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set")


class _ClientSession:
    """Any other rank's side of a round."""

    def __init__(
        self, env: Environment, round_number: int, key: bytes, who: Identity, timeout: float
    ) -> None:
        self.key = key
        self._who = who
        self._scope = f"init/{round_number}"
        host = "127.0.0.1" if len(_counts(env)) == 1 else _first_node(env)
        self._client = _connect(host, ports(env), key, timeout)
        self.local_address = self._client.local_address
        if is_loopback(self.local_address) and len(_counts(env)) > 1:
            # On rank 0's own node its name may stand for loopback.
            self.local_address = outward_address() or self.local_address

    def exchange(self, blob: bytes, timeout: float, on_waiting: OnWaiting) -> list[bytes]:
        return self._client.exchange(
            self._scope, self._who.rank, self._who.size, blob, timeout, on_waiting
        )

    def close(self) -> None:
        self._client.close()


def _connect(host: str, candidates: list[int], key: bytes, timeout: float) -> RendezvousClient:
    """Tries the ports in turn until rank 0 answers on one of them; neither it nor its name may be there yet.

    Raises:
        ConnectionError: it did not within `timeout` seconds, or holds another key.
    """
    deadline = time.monotonic() + timeout
    reported, pause, never = time.monotonic(), SHORTEST_PAUSE, threading.Event()
    errors: dict[int, OSError] = {}
    while True:
        for port in candidates:
            step = min(deadline - time.monotonic(), TRY_SECONDS)
            if step <= 0 and errors:
                break
            try:
                return RendezvousClient(host, port, key, max(step, 0.1))
            except OSError as error:
                # Rank 0 may give up first; that its key was another one says more than that it is gone.
                if not isinstance(errors.get(port), AuthenticationError):
                    errors[port] = error
        now = time.monotonic()
        if now >= deadline:
            raise _not_met(host, errors, timeout)
        if now - reported >= REPORT_SECONDS:
            reported = now
            logger.warning(
                "Still waiting for rank 0 on node %s to call hvd.init() (ports %s).",
                host,
                candidates,
            )
        # Nothing announces that a port or a name has come to be on another machine.
        never.wait(min(pause, deadline - now))
        pause = min(1.5 * pause, LONGEST_PAUSE)


def _not_met(host: str, errors: dict[int, OSError], timeout: float) -> ConnectionError:
    tried = "; ".join(f"port {port}: {error}" for port, error in errors.items())
    text = f"within {timeout:g} s rank 0 did not answer on node {host} ({tried})"
    if any(isinstance(error, AuthenticationError) for error in errors.values()):
        return ConnectionError(f"{text}. Somebody listens there with another key: {_fix()}")
    return ConnectionError(
        f"{text}. Rank 0 has not called hvd.init(), or the network does not let these ports through"
    )


def _fix() -> str:
    return (
        f"where nodes do not share {user_secret.default_path()}, run "
        f'export {KEY_VARIABLE}="$(openssl rand -base64 32)" before srun'
    )


def open_session(
    env: Environment, round_number: int, timeout: float
) -> _ServerSession | _ClientSession:
    """Serves, on rank 0, or connects to rank 0 within `timeout` seconds."""
    who = identity(env)
    key = job_key(env, user_secret.default_path())
    if who.rank == 0:
        return _ServerSession(env, round_number, key, who)
    return _ClientSession(env, round_number, key, who, timeout)
