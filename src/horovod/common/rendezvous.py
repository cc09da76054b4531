"""The authenticated connection by which the processes of a job meet, and the client of the driver's store.

Every connection of a job, to the store or between two ranks, begins alike:

    client -> server   32 bytes, nonce
    server -> client   32 bytes, nonce; 32 bytes, proof that it holds the job's key
    client -> server   32 bytes, proof that it holds the job's key

A proof is an HMAC-SHA256 over the role, the purpose of the connection and both nonces, so it can be
neither replayed nor reflected, and a stranger's bytes are only ever compared, never parsed.
On connections to the store every message then is `length (4) | MAC (32) | msgpack`; the MAC covers
direction, position in the stream, length and body.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Self

import msgpack

NONCE_BYTES = 32
PROOF_BYTES = 32
HEADER_BYTES = 4 + 32
MAX_MESSAGE_BYTES = 1 << 30
RECEIVE_STEP_BYTES = 1 << 20
REPORT_SECONDS = 10.0
STORE_PURPOSE = "rendezvous"

Role = Literal["client", "server"]


class AuthenticationError(ConnectionError):
    """The other side does not hold this job's key, or altered a message."""


class RendezvousError(RuntimeError):
    """The store refused a request; the text says why."""


# --- what both sides compute -------------------------------------------------------------------


def _proof(key: bytes, role: str, purpose: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    label = f"horovod {role} {purpose}\0".encode()
    return hmac.digest(key, label + client_nonce + server_nonce, "sha256")


class Seal:
    """Makes and checks the MACs of one direction of a connection."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._position = 0

    def _mac(self, length: bytes, body: bytes | bytearray) -> bytes:
        mac = hmac.new(self._key, self._position.to_bytes(8, "big") + length, "sha256")
        mac.update(body)
        self._position += 1
        return mac.digest()

    def header(self, body: bytes) -> bytes:
        """The bytes that go before `body`."""
        if len(body) > MAX_MESSAGE_BYTES:
            raise ValueError(
                f"a rendezvous message of {len(body)} bytes is too long; the limit is "
                f"{MAX_MESSAGE_BYTES} bytes"
            )
        length = len(body).to_bytes(4, "big")
        return length + self._mac(length, body)

    @staticmethod
    def body_length(header: bytes | bytearray) -> int:
        """How many bytes follow this header."""
        length = int.from_bytes(header[:4], "big")
        if length > MAX_MESSAGE_BYTES:
            raise AuthenticationError(f"a message of {length} bytes was announced")
        return length

    def check(self, header: bytes | bytearray, body: bytes | bytearray) -> None:
        """Raises AuthenticationError unless the sender of this message holds the key."""
        if not hmac.compare_digest(bytes(header[4:]), self._mac(bytes(header[:4]), body)):
            raise AuthenticationError("a message did not come from the proven peer as it is")


class Seals:
    """Both directions of one connection, from the point of view of `role`."""

    def __init__(
        self, key: bytes, role: Role, purpose: str, client_nonce: bytes, server_nonce: bytes
    ) -> None:
        by_client = Seal(_proof(key, "messages of client", purpose, client_nonce, server_nonce))
        by_server = Seal(_proof(key, "messages of server", purpose, client_nonce, server_nonce))
        self.outgoing = by_client if role == "client" else by_server
        self.incoming = by_server if role == "client" else by_client


class ServerHandshake:
    """The server's side of the challenge without any I/O; shared by `authenticate` and the store."""

    def __init__(self, key: bytes, purpose: str, client_nonce: bytes) -> None:
        self._key = key
        self._purpose = purpose
        self._nonces = (client_nonce, os.urandom(NONCE_BYTES))
        self.reply = self._nonces[1] + _proof(key, "server", purpose, *self._nonces)

    def accept(self, proof: bytes) -> Seals:
        """Checks the client's proof."""
        expected = _proof(self._key, "client", self._purpose, *self._nonces)
        if not hmac.compare_digest(expected, proof):
            raise AuthenticationError("it does not hold the key of this job")
        return Seals(self._key, "server", self._purpose, *self._nonces)


# --- blocking sockets --------------------------------------------------------------------------


def receive(sock: socket.socket, count: int, deadline: float) -> bytearray:
    """Exactly `count` bytes; memory grows only with what really arrives."""
    data = bytearray()
    while len(data) < count:
        sock.settimeout(_remaining(deadline))
        piece = sock.recv(min(count - len(data), RECEIVE_STEP_BYTES))
        if not piece:
            raise ConnectionError("the connection was closed by the other side")
        data += piece
    return data


def send(sock: socket.socket, data: bytes, deadline: float) -> None:
    """Sends all of it; TimeoutError after the deadline."""
    sock.settimeout(_remaining(deadline))
    sock.sendall(data)


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining


def handshake(sock: socket.socket, key: bytes, role: Role, purpose: str, deadline: float) -> Seals:
    """What `authenticate` does; also returns the seals for later messages."""
    if role == "server":
        server = ServerHandshake(key, purpose, bytes(receive(sock, NONCE_BYTES, deadline)))
        send(sock, server.reply, deadline)
        return server.accept(bytes(receive(sock, PROOF_BYTES, deadline)))
    client_nonce = os.urandom(NONCE_BYTES)
    send(sock, client_nonce, deadline)
    reply = bytes(receive(sock, NONCE_BYTES + PROOF_BYTES, deadline))
    server_nonce, proof = reply[:NONCE_BYTES], reply[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, "server", purpose, client_nonce, server_nonce)):
        raise AuthenticationError("the other side does not hold the key of this job")
    send(sock, _proof(key, "client", purpose, client_nonce, server_nonce), deadline)
    return Seals(key, "client", purpose, client_nonce, server_nonce)


def authenticate(sock: socket.socket, key: bytes, role: Role, purpose: str, timeout: float) -> None:
    """Proves on a connected stream socket that both sides hold `key`, for the same `purpose`.

    `role` is "client" on the side that connected. Raises AuthenticationError when the other side
    fails, TimeoutError after `timeout` seconds, ConnectionError when it hangs up. The socket's own
    timeout is left as it was; on an error the caller closes the socket.
    """
    if role not in ("client", "server"):
        raise ValueError(f"role must be 'client' or 'server', not {role!r}")
    before = sock.gettimeout()
    try:
        handshake(sock, key, role, purpose, time.monotonic() + timeout)
    finally:
        sock.settimeout(before)


class RendezvousClient:
    """A blocking client of the driver's store; calls from several threads take turns.

    After a timeout or a broken connection the client is closed and can't be used again.
    """

    def __init__(self, address: str, port: int, key: bytes, timeout: float) -> None:
        """Connects and authenticates within `timeout` seconds, which then bounds `set` as well."""
        self._timeout = timeout
        self._lock = threading.Lock()
        deadline = time.monotonic() + timeout
        self._where = f"{address}:{port}"
        try:
            self._socket = socket.create_connection((address, port), timeout)
        except OSError as error:
            raise ConnectionError(
                f"cannot reach the rendezvous of the launcher at {self._where}: {error}"
            ) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._seals = handshake(self._socket, key, "client", STORE_PURPOSE, deadline)
        except BaseException:
            self._socket.close()
            raise
        self.local_address: str = self._socket.getsockname()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def exchange(
        self,
        scope: str,
        rank: int,
        size: int,
        blob: bytes,
        timeout: float,
        on_waiting: Callable[[list[int]], None] | None = None,
    ) -> list[bytes]:
        """All-gather: the blobs of ranks 0 to size-1, once all of them have called.

        `on_waiting` is given the missing ranks about every ten seconds. Raises TimeoutError that
        names the missing ranks, RendezvousError when two processes claim one rank or sizes differ.
        """
        report_every = min(REPORT_SECONDS, timeout / 2)
        missing: list[int] = []
        with self._lock, self._closed_on_error():
            deadline = time.monotonic() + timeout
            self._send(["exchange", scope, rank, size, blob, report_every], deadline)
            while True:
                try:
                    kind, value = self._receive(deadline)
                except TimeoutError:
                    who = f"rank(s) {missing}" if missing else "other ranks"
                    raise TimeoutError(
                        f"rank {rank} of {size} waited {timeout:g} s in rendezvous '{scope}' for "
                        f"{who}, which did not come"
                    ) from None
                if kind == "all":
                    return list(value)
                missing = list(value)
                if on_waiting is not None:
                    on_waiting(missing)

    def set(self, scope: str, key: str, value: bytes) -> None:
        """Stores `value`; an earlier one is replaced."""
        with self._lock, self._closed_on_error():
            deadline = time.monotonic() + self._timeout
            self._send(["set", scope, key, value], deadline)
            self._receive(deadline)

    def get(self, scope: str, key: str, timeout: float) -> bytes:
        """The value, waiting up to `timeout` seconds until somebody has set it (TimeoutError)."""
        with self._lock, self._closed_on_error():
            deadline = time.monotonic() + timeout
            self._send(["get", scope, key], deadline)
            try:
                return bytes(self._receive(deadline)[1])
            except TimeoutError:
                raise TimeoutError(
                    f"nobody set '{key}' in rendezvous '{scope}' within {timeout:g} s"
                ) from None

    def _closed_on_error(self) -> _ClosedOnError:
        return _ClosedOnError(self._socket)

    def _send(self, message: list[Any], deadline: float) -> None:
        body: bytes = msgpack.packb(message)
        header = self._seals.outgoing.header(body)
        send(self._socket, header + body, deadline)

    def _receive(self, deadline: float) -> tuple[str, Any]:
        header = receive(self._socket, HEADER_BYTES, deadline)
        body = receive(self._socket, Seal.body_length(header), deadline)
        self._seals.incoming.check(header, body)
        kind, value = msgpack.unpackb(body)
        if kind == "error":
            raise RendezvousError(value)
        return kind, value


class _ClosedOnError:
    """Closes a socket whose stream is in an unknown state after an exception."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A ValueError came before anything was sent; a refusal is a complete answer.
        if kind is not None and not issubclass(kind, (RendezvousError, ValueError)):
            self._socket.close()
