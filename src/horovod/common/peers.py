"""Connections between ranks: dialling, accepting, proving the key, and passing descriptors.

A connection begins with the mutual challenge of `rendezvous.authenticate`; then both sides say hello
(kind of connection and own rank), over Unix sockets together with their memory and doorbell. Nothing
of a stranger is parsed; strangers are bounded in number and time and can't hold up a peer.
"""

from __future__ import annotations

import array
import contextlib
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from horovod.common.log import logger
from horovod.common.rendezvous import AuthenticationError, authenticate

HANDSHAKE_SECONDS = 10.0
RETRY_SECONDS = 0.05
MAX_HANDSHAKES = 64
_HELLO = struct.Struct(">BI")


class ConnectionKind(IntEnum):
    """What a connection is for. HOST ones run over Unix sockets, the others over TCP."""

    HOST = 0
    TREE = 1
    DATA = 2


class Peer(NamedTuple):
    """One established connection and the descriptors that came with it (memory and doorbell)."""

    sock: socket.socket
    descriptors: list[int]

    def close(self) -> None:
        """Closes everything that came."""
        self.sock.close()
        close_all(self.descriptors)


Address = tuple[str, int] | str


def close_all(descriptors: Iterable[int]) -> None:
    """Closes descriptors that this module owns."""
    for descriptor in descriptors:
        os.close(descriptor)


def listen_tcp(address: str) -> socket.socket:
    """Returns a TCP socket that listens on a free port of this address only."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=128)


def listen_unix() -> tuple[socket.socket, str]:
    """Returns a listening Unix socket and its abstract name, which leaves no file behind.

    Raises:
        OSError: this system has no abstract Unix sockets.
    """
    name = f"horovod-{os.getpid()}-{os.urandom(8).hex()}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind("\0" + name)
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    return sock, name


def _send_hello(
    sock: socket.socket, kind: ConnectionKind, rank: int, descriptors: Sequence[int]
) -> None:
    hello = _HELLO.pack(kind, rank)
    if descriptors:
        socket.send_fds(sock, [hello], descriptors)
    else:
        sock.sendall(hello)


def _receive_descriptors(
    sock: socket.socket, byte_count: int, at_most: int
) -> tuple[bytes, list[int]]:
    """Like socket.recv_fds, which in Python 3.11 forgets its flags and so leaks across exec."""
    received = array.array("i")
    space = socket.CMSG_SPACE(at_most * received.itemsize)
    data, ancillary, _, _ = sock.recvmsg(byte_count, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(content[: len(content) - len(content) % received.itemsize])
    return data, list(received)


def _receive_hello(
    sock: socket.socket, expected_descriptors: int
) -> tuple[ConnectionKind, int, list[int]]:
    """Receives kind, rank and exactly the expected number of descriptors."""
    received = b""
    descriptors: list[int] = []
    try:
        while len(received) < _HELLO.size:
            missing = _HELLO.size - len(received)
            if expected_descriptors:
                piece, passed = _receive_descriptors(sock, missing, expected_descriptors)
                descriptors += passed
            else:
                piece = sock.recv(missing)
            if not piece:
                raise ConnectionError("the connection was closed by the other side")
            received += piece
        if len(descriptors) != expected_descriptors:
            raise ConnectionError(
                f"{expected_descriptors} descriptors were expected with the hello, "
                f"{len(descriptors)} came"
            )
        kind, rank = _HELLO.unpack(received)
        if kind not in ConnectionKind.__members__.values():
            raise ConnectionError(f"the hello names an unknown kind of connection, {kind}")
        return ConnectionKind(kind), rank, descriptors
    except BaseException:
        close_all(descriptors)
        raise


def _send_at_once(sock: socket.socket) -> None:
    """Without this the hello, a second small write, waits 40 ms for an acknowledgement."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Credentials(NamedTuple):
    """What a rank shows to others: the job's key, the purpose (the round) and its own rank."""

    key: bytes
    purpose: str
    rank: int


class Dialer:
    """Connects to ranks; `stop` ends an attempt that is under way in another thread."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._stopping = threading.Event()
        self._current: socket.socket | None = None
        self.retries = 0  # attempts that had to be repeated

    def stop(self) -> None:
        """Makes the attempt under way, and every later one, fail."""
        self._stopping.set()
        current = self._current
        if current is not None:
            with contextlib.suppress(OSError):  # it may have ended by itself meanwhile
                current.shutdown(socket.SHUT_RDWR)

    def dial(
        self,
        address: Address,
        kind: ConnectionKind,
        peer: int,
        descriptors: Sequence[int],
        deadline: float,
    ) -> Peer:
        """Returns an authenticated connection to rank `peer`, trying again until the deadline.

        Raises:
            AuthenticationError: who listens there does not hold the job's key.
            OSError: no connection within the time, or `stop` was called.
        """
        while True:
            try:
                return self._attempt(address, kind, peer, descriptors, deadline)
            except AuthenticationError:
                raise
            except OSError:
                if time.monotonic() + RETRY_SECONDS >= deadline:
                    raise
                if self._stopping.wait(RETRY_SECONDS):
                    raise
                self.retries += 1

    def _attempt(
        self,
        address: Address,
        kind: ConnectionKind,
        peer: int,
        descriptors: Sequence[int],
        deadline: float,
    ) -> Peer:
        remaining = max(deadline - time.monotonic(), RETRY_SECONDS)
        family = socket.AF_UNIX
        if not isinstance(address, str):
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        self._current = sock
        try:
            if self._stopping.is_set():
                raise ConnectionError("Horovod is shutting down.")
            sock.settimeout(remaining)
            sock.connect("\0" + address if isinstance(address, str) else address)
            _send_at_once(sock)
            authenticate(
                sock, self._credentials.key, "client", self._credentials.purpose, remaining
            )
            _send_hello(sock, kind, self._credentials.rank, descriptors)
            their_kind, their_rank, received = _receive_hello(sock, len(descriptors))
            if (their_kind, their_rank) != (kind, peer):
                close_all(received)
                raise AuthenticationError(f"rank {their_rank} answered instead of rank {peer}")
            sock.settimeout(None)
            return Peer(sock, received)
        except BaseException:
            sock.close()
            raise
        finally:
            self._current = None


class Acceptor:
    """Owns this rank's listening sockets and the thread that accepts connections on them.

    Arrived connections are kept for `wait_for` until `deliver_data_to` names somebody who takes DATA
    connections at once.
    """

    def __init__(
        self,
        credentials: Credentials,
        listeners: Sequence[socket.socket],
        size: int,
        descriptors: Sequence[int],
    ) -> None:
        self._credentials = credentials
        self._listeners = list(listeners)
        self._size = size
        self._descriptors = descriptors
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._condition = threading.Condition()
        self._arrived: dict[tuple[ConnectionKind, int], Peer] = {}
        self._on_data: Callable[[int, socket.socket], None] | None = None
        self._unproven: dict[socket.socket, None] = {}  # oldest first
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._stranger_logged = False
        self._thread = threading.Thread(target=self._run, name="horovod-connect", daemon=True)

    def start(self) -> None:
        """Begins to accept."""
        self._thread.start()

    # --- the accepting thread ------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.PollSelector() as selector:  # has no descriptor that a fork could copy
            for listener in self._listeners:
                listener.setblocking(False)
                selector.register(listener, selectors.EVENT_READ)
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            while True:
                for event, _ in selector.select():
                    if event.fileobj is self._wake_receiver:
                        return
                    self._accept(event.fileobj)  # type: ignore[arg-type]

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return  # it gave up between the event and now
        except OSError as error:
            self._log_stranger(f"could not be accepted: {error}")
            self._wake_receiver.settimeout(RETRY_SECONDS)  # out of descriptors: do not spin
            with contextlib.suppress(TimeoutError):
                self._wake_receiver.recv(1, socket.MSG_PEEK)
            return
        thread = threading.Thread(
            target=self._handshake, args=(sock,), name="horovod-handshake", daemon=True
        )
        with self._condition:
            if self._closing:
                sock.close()
                return
            self._make_room()
            self._unproven[sock] = None
            self._threads = [other for other in self._threads if other.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _make_room(self) -> None:
        """Gives up the oldest unproven connections: a peer proves itself in milliseconds."""
        while len(self._unproven) >= MAX_HANDSHAKES and not self._closing:
            with contextlib.suppress(OSError):  # it may just have ended
                next(iter(self._unproven)).shutdown(socket.SHUT_RDWR)
            self._condition.wait(RETRY_SECONDS)

    # --- one thread per connection that is not yet proven ------------------------------------------

    def _handshake(self, sock: socket.socket) -> None:
        try:
            peer = self._prove(sock)
        except OSError as error:
            self._log_stranger(str(error))
            self._forget(sock)
            sock.close()
            return
        self._forget(sock)
        self._deliver(*peer)

    def _forget(self, sock: socket.socket) -> None:
        with self._condition:
            self._unproven.pop(sock, None)
            self._condition.notify_all()

    def _prove(self, sock: socket.socket) -> tuple[ConnectionKind, int, Peer]:
        key, purpose, rank = self._credentials
        _send_at_once(sock)
        authenticate(sock, key, "server", purpose, HANDSHAKE_SECONDS)
        sock.settimeout(HANDSHAKE_SECONDS)
        over_unix = sock.family == socket.AF_UNIX
        kind, peer, descriptors = _receive_hello(sock, len(self._descriptors) if over_unix else 0)
        try:
            late = self._on_data is not None and kind is not ConnectionKind.DATA
            if late or over_unix != (kind is ConnectionKind.HOST) or peer >= self._size:
                raise ConnectionError(f"rank {peer} has no business with a {kind.name} connection")
            _send_hello(sock, kind, rank, self._descriptors if over_unix else ())
        except BaseException:
            close_all(descriptors)
            raise
        sock.settimeout(None)
        return kind, peer, Peer(sock, descriptors)

    def _deliver(self, kind: ConnectionKind, rank: int, peer: Peer) -> None:
        with self._condition:
            if self._closing:
                peer.close()
                return
            if kind is ConnectionKind.DATA and self._on_data is not None:
                self._on_data(rank, peer.sock)
                return
            older = self._arrived.pop((kind, rank), None)
            if older is not None:  # the other side gave up on it and dialled again
                older.close()
            self._arrived[kind, rank] = peer
            self._condition.notify_all()

    def _log_stranger(self, reason: str) -> None:
        if self._stranger_logged or self._closing:
            return
        self._stranger_logged = True
        logger.warning(
            "A connection to this rank that is not part of the job was closed: %s. "
            "Others like it will be closed without a message.",
            reason,
        )

    # --- the caller's side -------------------------------------------------------------------------

    def wait_for(
        self, kind: ConnectionKind, ranks: Sequence[int], timeout: float
    ) -> dict[int, Peer]:
        """Returns the connections of this kind from `ranks` that are there after at most `timeout`."""
        wanted = {(kind, rank) for rank in ranks}
        with self._condition:
            self._condition.wait_for(lambda: wanted <= self._arrived.keys(), timeout)
            found = [key for key in wanted if key in self._arrived]
            return {key[1]: self._arrived.pop(key) for key in found}

    def deliver_data_to(self, on_data: Callable[[int, socket.socket], None]) -> None:
        """From now on `on_data(rank, socket)` owns DATA connections, those that wait included."""
        with self._condition:
            self._on_data = on_data
            early = [key for key in self._arrived if key[0] is ConnectionKind.DATA]
            for key in early:
                on_data(key[1], self._arrived.pop(key).sock)

    def close(self) -> None:
        """Closes listeners and connections nobody took, and joins every thread."""
        with self._condition:
            if self._closing:
                return
            self._closing = True
            for sock in self._unproven:
                with contextlib.suppress(OSError):  # not connected any more
                    sock.shutdown(socket.SHUT_RDWR)
        self._wake_sender.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        for thread in self._threads:
            thread.join()
        for peer in self._arrived.values():
            peer.close()
        self._arrived.clear()
        self.close_copies()

    def close_copies(self) -> None:
        """Closes this process's descriptors of the listeners, after a fork the child's copies only."""
        for sock in (*self._listeners, self._wake_receiver, self._wake_sender):
            sock.close()
