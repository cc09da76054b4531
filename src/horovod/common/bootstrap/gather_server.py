"""Rank 0's all-gather for `RendezvousClient`s, where no launcher serves one. One thread per client."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from typing import Any

import msgpack

from horovod.common.bootstrap.kind import OnWaiting
from horovod.common.log import logger
from horovod.common.rendezvous import (
    HEADER_BYTES,
    REPORT_SECONDS,
    STORE_PURPOSE,
    AuthenticationError,
    RendezvousError,
    Seal,
    Seals,
    handshake,
    receive,
    send,
)

# A stranger costs one of these places and one thread, for at most HANDSHAKE_SECONDS and 64 bytes.
UNPROVEN_LIMIT = 256
HANDSHAKE_SECONDS = 10.0
ANSWER_SECONDS = 60.0
OFFENDERS_LOGGED = 32
ACCEPT_RETRY_SECONDS = 0.1
BACKLOG = 4096
SHORTEST_REPORT_SECONDS = 0.1


class _Round:
    """One all-gather in progress."""

    def __init__(self) -> None:
        self.blobs: dict[int, bytes] = {}
        self.waiting = 0
        self.result: list[bytes] | None = None
        # Readable for everybody who waits once all have come: it is written once and never read.
        self.complete = os.eventfd(0, os.EFD_CLOEXEC)


class GatherServer:
    """Serves on a bound and listening socket for the life of the process.

    It stays between two inits: a rank may come to the next round before rank 0 has left the last one.

    Attributes:
        port: where it listens.
        met_strangers: whether somebody came and did not prove to hold the key. A client with another key
            hangs up before it says anything.
    """

    def __init__(self, listener: socket.socket, key: bytes, size: int) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._key = key
        self._size = size
        self._lock = threading.Lock()
        self._rounds: dict[str, _Round] = {}
        self._unproven = threading.BoundedSemaphore(UNPROVEN_LIMIT)
        self._offenders: set[str] = set()
        self.met_strangers = False
        self._thread = threading.Thread(target=self._accept, name="horovod-gather", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the listening; clients that are connected hang up by themselves."""
        # "Not connected" is how a listener answers, but it wakes the accepting thread all the same.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def close_copy(self) -> None:
        """In a forked child: gives the port up, without touching the parent's."""
        self._listener.close()

    def exchange(
        self, scope: str, blob: bytes, timeout: float, on_waiting: OnWaiting
    ) -> list[bytes]:
        """The all-gather of rank 0, which serves itself. TimeoutError names the missing ranks."""
        deadline = time.monotonic() + timeout
        current = self._enter(scope, 0, blob)
        try:
            while current.result is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    missing = self._missing(current)
                    raise TimeoutError(
                        f"rank 0 of {self._size} waited {timeout:g} s for rank(s) {missing}, which did "
                        "not come"
                    )
                step = min(remaining, REPORT_SECONDS)
                done = _wait([current.complete], step)
                if not done and step == REPORT_SECONDS:
                    on_waiting(self._missing(current))
            return current.result
        finally:
            self._leave(scope, 0, current)

    # --- rounds

    def _enter(self, scope: str, rank: int, blob: bytes) -> _Round:
        with self._lock:
            current = self._rounds.get(scope)
            if current is None:
                current = self._rounds[scope] = _Round()
            if rank in current.blobs:
                raise RendezvousError(
                    f"two processes came to '{scope}' as rank {rank}; each rank's process must be "
                    "started once"
                )
            current.blobs[rank] = blob
            current.waiting += 1
            if len(current.blobs) == self._size:
                current.result = [current.blobs[each] for each in range(self._size)]
                del self._rounds[scope]
                os.eventfd_write(current.complete, 1)
            return current

    def _leave(self, scope: str, rank: int, current: _Round) -> None:
        with self._lock:
            current.waiting -= 1
            if current.result is None:  # it gave up: to the others it is missing again
                del current.blobs[rank]
            if current.waiting == 0:
                if current.result is None:
                    del self._rounds[scope]
                os.close(current.complete)

    def _missing(self, current: _Round) -> list[int]:
        with self._lock:
            return [rank for rank in range(self._size) if rank not in current.blobs]

    # --- clients

    def _accept(self) -> None:
        while True:
            self._unproven.acquire()
            try:
                sock, peer = self._listener.accept()
            except OSError as error:
                self._unproven.release()
                if _is_shut_down(self._listener):
                    return
                self._report("the listening socket", f"accept failed: {error}")
                time.sleep(
                    ACCEPT_RETRY_SECONDS
                )  # out of descriptors: nothing announces their return
                continue
            name = "horovod-gather-client"
            threading.Thread(
                target=self._serve, args=(sock, str(peer[0])), name=name, daemon=True
            ).start()

    def _serve(self, sock: socket.socket, peer: str) -> None:
        with sock:
            try:
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    deadline = time.monotonic() + HANDSHAKE_SECONDS
                    seals = handshake(sock, self._key, "server", STORE_PURPOSE, deadline)
                except OSError:
                    self.met_strangers = True
                    raise
                finally:
                    self._unproven.release()
                while _wait([sock.fileno()], None):
                    self._answer(sock, seals)
            except AuthenticationError as error:
                self._report(peer, str(error))
            except TimeoutError:
                self._report(peer, "it did not send what was due in time")
            except OSError:
                return  # it hung up: all is done, or a rank has ended, or a port scan

    def _answer(self, sock: socket.socket, seals: Seals) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS
        header = receive(sock, HEADER_BYTES, deadline)
        body = receive(sock, Seal.body_length(header), deadline)
        seals.incoming.check(header, body)
        try:
            match msgpack.unpackb(body):
                case [
                    "exchange",
                    str(scope),
                    int(rank),
                    int(size),
                    bytes(blob),
                    (float() | int()) as every,
                ]:
                    if size != self._size or not 0 < rank < size:
                        raise RendezvousError(
                            f"rank {rank} of {size} came to a job of {self._size} ranks that rank 0 "
                            "serves"
                        )
                    answer = self._exchange(sock, seals, scope, rank, blob, every)
                case _:
                    raise RendezvousError("rank 0 does not know this request")
        except RendezvousError as error:
            answer = ["error", str(error)]
        _reply(sock, seals, answer)

    def _exchange(
        self, sock: socket.socket, seals: Seals, scope: str, rank: int, blob: bytes, every: float
    ) -> list[Any]:
        current = self._enter(scope, rank, blob)
        try:
            while current.result is None:
                # A client that waits sends nothing, so whatever can be read is its end.
                ready = _wait(
                    [current.complete, sock.fileno()], max(every, SHORTEST_REPORT_SECONDS)
                )
                if current.result is None and ready:
                    raise ConnectionError("hung up while it waited")
                if not ready:
                    _reply(sock, seals, ["waiting", self._missing(current)])
            return ["all", current.result]
        finally:
            self._leave(scope, rank, current)

    def _report(self, peer: str, reason: str) -> None:
        """Once per address, and for a bounded number of addresses."""
        with self._lock:
            if peer in self._offenders or len(self._offenders) >= OFFENDERS_LOGGED:
                return
            self._offenders.add(peer)
        logger.warning(
            "Closed a connection from %s to rank 0: %s (further ones from there are not mentioned).",
            peer,
            reason,
        )


def _is_shut_down(listener: socket.socket) -> bool:
    return not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)


def _reply(sock: socket.socket, seals: Seals, message: list[Any]) -> None:
    body: bytes = msgpack.packb(message)
    send(sock, seals.outgoing.header(body) + body, time.monotonic() + ANSWER_SECONDS)


def _wait(descriptors: list[int], seconds: float | None) -> list[int]:
    """Which of them can be read, within `seconds`; None waits without end."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [ready for ready, _ in poll.poll(None if seconds is None else seconds * 1000)]
