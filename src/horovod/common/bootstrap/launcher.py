"""Started by horovodrun, or by anything that sets the same variables; ranks meet at its store."""

from __future__ import annotations

import base64
import binascii
import socket

from horovod.common.bootstrap.kind import (
    Environment,
    Identity,
    OnWaiting,
    check_identity,
    whole_number,
)
from horovod.common.rendezvous import RendezvousClient

NAME = "horovodrun"
KEY_VARIABLE = "_HOROVOD_SECRET_KEY"
_NEEDED = (
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    KEY_VARIABLE,
)


def why_not(env: Environment) -> str | None:
    """None when the launcher's variables are there, otherwise which of them are missing."""
    missing = [name for name in _NEEDED if not env.get(name)]
    return f"{', '.join(missing)} not set" if missing else None


def identity(env: Environment) -> Identity:
    """Returns the identity that the launcher gave.

    Raises:
        ValueError: a variable is missing, not a number or contradicts another.
    """
    rank, size, local_rank, local_size, cross_rank, cross_size = (
        whole_number(env, f"HOROVOD_{part}")
        for part in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    )
    host = env.get("HOROVOD_HOSTNAME") or socket.gethostname()
    return check_identity(
        Identity(rank, size, local_rank, local_size, cross_rank, cross_size, host)
    )


class _Session:
    """Holds the connection to the launcher's store for one round."""

    def __init__(self, env: Environment, round_number: int, timeout: float) -> None:
        try:
            self.key = base64.b64decode(env[KEY_VARIABLE], validate=True)
        except binascii.Error:
            raise ValueError(f"{KEY_VARIABLE} is not valid base64") from None
        self._identity = identity(env)
        self._scope = f"init/{round_number}"
        address = env["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        port = whole_number(env, "HOROVOD_GLOO_RENDEZVOUS_PORT")
        self._client = RendezvousClient(address, port, self.key, timeout)
        self.local_address = self._client.local_address

    def exchange(self, blob: bytes, timeout: float, on_waiting: OnWaiting) -> list[bytes]:
        rank, size = self._identity.rank, self._identity.size
        return self._client.exchange(self._scope, rank, size, blob, timeout, on_waiting)

    def close(self) -> None:
        self._client.close()


def open_session(env: Environment, round_number: int, timeout: float) -> _Session:
    """Connects to the launcher's store within `timeout` seconds."""
    return _Session(env, round_number, timeout)
