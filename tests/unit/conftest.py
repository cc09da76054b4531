"""Shared by the unit tests: a stranger to the ports on which this project listens."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable

import pytest

PATIENCE = 20.0


@pytest.fixture
def stranger() -> Callable[..., bytes]:
    """`stranger(address, said, then_ends=False)` returns what came back until the connection ended.

    With `then_ends` it closes its own half after what it said. Whoever listens may hang up at any
    moment, also before all was said. Every call on the socket can then fail (ECONNRESET, EPIPE,
    ENOTCONN); here that is the end of the connection and no more. A silence of 20 s raises
    TimeoutError.
    """

    def talk(address: tuple[str, int], said: bytes, then_ends: bool = False) -> bytes:
        heard = b""
        with socket.create_connection(address, PATIENCE) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(said)
            if then_ends:
                _end(sock)
            with contextlib.suppress(ConnectionError):
                while piece := sock.recv(4096):
                    heard += piece
        return heard

    return talk


def _end(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError as error:  # ENOTCONN is no ConnectionError
        if error.errno != errno.ENOTCONN:
            raise
