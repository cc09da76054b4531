"""Authenticated messages between a small service and its clients: one request and one answer per connection.

The bytes are those of `horovod.common.rendezvous`: both ends prove that they hold the key before anything is
parsed, and every message is msgpack under a MAC. Messages here are short, and longer ones are refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgpack

from horovod.common.rendezvous import (
    HEADER_BYTES,
    AuthenticationError,
    Role,
    Seal,
    Seals,
    handshake,
    receive,
    send,
)

Addresses = dict[str, list[tuple[str, int]]]
"""By network interface, the addresses and ports where a service listens."""

MESSAGE_BYTES = 64 * 1024
HANDSHAKE_SECONDS = 10.0
REQUEST_SECONDS = 30.0  # for a request to arrive after the handshake, or an answer to leave
UNPROVEN_LIMIT = 256  # a stranger costs one of these places for HANDSHAKE_SECONDS, and a thread
SHUTDOWN_SECONDS = 5.0
ACCEPT_RETRY_SECONDS = 0.1
LONG_SECONDS = (
    30 * 24 * 3600.0
)  # what stands for "for ever" in calls that take milliseconds as an int

# A host that vanishes sends no word: after a minute of silence the kernel asks six times.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


class Connection:
    """A connected socket whose two ends have proved that they hold the key."""

    def __init__(self, sock: socket.socket, key: bytes, role: Role, purpose: str) -> None:
        """Proves and checks; raises AuthenticationError, TimeoutError or ConnectionError."""
        self._socket = sock
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        self._seals: Seals = handshake(sock, key, role, purpose, deadline)

    def send(self, message: list[Any], timeout: float = REQUEST_SECONDS) -> None:
        """Sends a message; ValueError if it is too long."""
        body: bytes = msgpack.packb(message)
        if len(body) > MESSAGE_BYTES:
            raise ValueError(f"a message of {len(body)} bytes; the limit is {MESSAGE_BYTES}")
        header = self._seals.outgoing.header(body)
        send(self._socket, header + body, time.monotonic() + timeout)

    def receive(self, timeout: float = REQUEST_SECONDS) -> list[Any]:
        """Returns the next message."""
        deadline = time.monotonic() + timeout
        header = receive(self._socket, HEADER_BYTES, deadline)
        length = Seal.body_length(header)
        if length > MESSAGE_BYTES:
            raise AuthenticationError(f"a message of {length} bytes was announced")
        body = receive(self._socket, length, deadline)
        self._seals.incoming.check(header, body)
        message = msgpack.unpackb(body)
        if not isinstance(message, list):
            raise AuthenticationError("a message is no list")
        return message

    def is_open(self) -> bool:
        """Tells whether the other end is still there; it must not be sending."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)


class Server:
    """Answers requests in threads, one per connection.

    Args:
        key: what clients must hold.
        purpose: name of the service; a client of another one is refused.
        answer: returns the answer to a request. It may wait, looking now and then whether the connection
            is open, and must return soon after `stop` was called.
        stop: makes waiting calls of `answer` return.
        nics: network interfaces whose addresses are told to clients; all if None.
    """

    def __init__(
        self,
        key: bytes,
        purpose: str,
        answer: Callable[[list[Any], Callable[[], bool]], list[Any]],
        stop: Callable[[], None],
        nics: Iterable[str] | None = None,
    ) -> None:
        self._key = key
        self._purpose = purpose
        self._answer = answer
        self._stop = stop
        self._nics = None if nics is None else set(nics)
        self._listener = socket.create_server(("", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self._unproven = threading.BoundedSemaphore(UNPROVEN_LIMIT)
        self._lock = threading.Lock()
        self._strangers: dict[threading.Thread, socket.socket] = {}
        self._clients: dict[threading.Thread, socket.socket] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._accept, name=purpose, daemon=True)
        self._thread.start()

    def addresses(self) -> Addresses:
        """Where clients may connect.

        Raises:
            ValueError: none of the chosen network interfaces has an address.
        """
        available = interface_addresses()
        found = {
            name: [(address, self.port)]
            for name, address in available.items()
            if self._nics is None or name in self._nics
        }
        if not found:
            raise ValueError(
                f"none of the network interfaces {sorted(self._nics or [])} has an IPv4 address here; these "
                f"have one: {', '.join(available)}"
            )
        return found

    def shutdown(self) -> None:
        """Ends the service; those who wait get an answer first. Calls after the first do nothing."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        self._stop()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._thread.join()
        self._listener.close()
        with self._lock:
            clients = dict(self._clients)
            for sock in self._strangers.values():
                _hang_up(sock)
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        for thread, sock in clients.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _hang_up(sock)

    def _accept(self) -> None:
        while True:
            self._unproven.acquire()
            try:
                sock, _ = self._listener.accept()
            except OSError:  # stopped, out of descriptors, or the peer has already gone
                self._unproven.release()
                if self._stopping:
                    return
                time.sleep(ACCEPT_RETRY_SECONDS)
                continue
            thread = threading.Thread(
                target=self._serve, args=(sock,), name=f"{self._purpose} connection", daemon=True
            )
            with self._lock:
                self._strangers[thread] = sock
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        me = threading.current_thread()
        try:
            with sock:
                _keep_alive(sock)
                try:
                    connection = Connection(sock, self._key, "server", self._purpose)
                finally:
                    self._unproven.release()
                with self._lock:
                    self._clients[me] = self._strangers.pop(me)
                request = connection.receive()
                connection.send(self._answer(request, connection.is_open))
        except (OSError, ValueError):
            pass  # a stranger, or a client that hung up or talks nonsense: there is nobody to tell
        finally:
            with self._lock:
                self._strangers.pop(me, None)
                self._clients.pop(me, None)


def ask(
    address: tuple[str, int], key: bytes, purpose: str, request: list[Any], timeout: float
) -> list[Any]:
    """Connects, sends a request and returns the answer.

    Args:
        address: host and port.
        key: what both ends must hold.
        purpose: name of the service.
        request: what it is asked.
        timeout: seconds within which the answer must come after the request.

    Raises:
        OSError: nobody answered, or somebody else.
    """
    with socket.create_connection(address, HANDSHAKE_SECONDS) as sock:
        _keep_alive(sock)
        connection = Connection(sock, key, "client", purpose)
        connection.send(request)
        return connection.receive(min(timeout, LONG_SECONDS))


def local_address_towards(
    address: tuple[str, int], key: bytes, purpose: str, timeout: float
) -> str:
    """Makes sure that the service is there; returns the address that this host has on the way.

    Raises:
        OSError: nobody answered, or somebody else.
    """
    with socket.create_connection(address, timeout) as sock:
        Connection(sock, key, "client", purpose)
        return str(sock.getsockname()[0])


def _keep_alive(sock: socket.socket) -> None:
    for level, option, value in _KEEPALIVE:
        sock.setsockopt(level, option, value)


def _hang_up(sock: socket.socket) -> None:
    """Wakes whoever reads from the socket."""
    with contextlib.suppress(OSError):  # it is closed already
        sock.shutdown(socket.SHUT_RDWR)


def interface_addresses() -> dict[str, str]:
    """Returns the IPv4 address of every network interface of this host that has one."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name)[:15])
            try:
                answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found
