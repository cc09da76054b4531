"""The driver's rendezvous store: a small authenticated key-value and all-gather server in a thread."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgpack

from horovod.common.rendezvous import (
    HEADER_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    RECEIVE_STEP_BYTES,
    STORE_PURPOSE,
    AuthenticationError,
    Seal,
    Seals,
    ServerHandshake,
)

if TYPE_CHECKING:
    import asyncio

# A stranger costs us one of these places for at most HANDSHAKE_SECONDS and 96 bytes.
UNPROVEN_LIMIT = 256
HANDSHAKE_SECONDS = 10.0
OFFENDERS_LOGGED = 32
RANK_LIMIT = 1 << 20
BACKLOG = 4096
ACCEPT_RETRY_SECONDS = 0.1
HERE, EVERYWHERE = "127.0.0.1", ""


def _listen(address: str) -> socket.socket:
    if address == EVERYWHERE and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("::", 0), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
        )
    return socket.create_server((address, 0), backlog=BACKLOG)


class Store:
    """Serves `RendezvousClient`s that hold `key`; also read and written by the driver directly.

    What clients set in a scope of `takers` is not stored but given to that function as key and value, in the
    server's thread; its ValueError is what the client is told.

    asyncio is imported in the server's thread: connections that come before wait in the backlog,
    and the driver starts its agents meanwhile.
    """

    def __init__(
        self,
        key: bytes,
        log: Callable[[str], None],
        address: str = HERE,
        takers: Mapping[str, Callable[[str, bytes], None]] | None = None,
    ) -> None:
        self.key = key
        self.takers = dict(takers or {})
        self._log = log
        self._listener = _listen(address)
        self._listener.setblocking(False)
        self.address: str = address
        self.port: int = self._listener.getsockname()[1]
        self._values: dict[tuple[str, str], bytes] = {}
        self._values_lock = threading.Lock()
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="rendezvous-store", daemon=True)

    def start(self) -> None:
        """Starts serving."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the server and all its connections; returns when its thread has ended."""
        os.close(self._stop_writer)
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._stop_reader)
        self._listener.close()

    def set_value(self, scope: str, key: str, value: bytes) -> None:
        """Stores a value before `start`, so that workers find it."""
        with self._values_lock:
            self._values[scope, key] = value

    def value(self, scope: str, key: str) -> bytes | None:
        """What a worker or the driver has set, or None."""
        with self._values_lock:
            return self._values.get((scope, key))

    def values(self, scope: str) -> list[tuple[str, bytes]]:
        """All keys and values of a scope, in the order in which they were first set."""
        with self._values_lock:
            return [(key, value) for (of, key), value in self._values.items() if of == scope]

    def _run(self) -> None:
        import asyncio

        asyncio.run(_Server(self).serve())


class _Round:
    """One all-gather in progress."""

    def __init__(self, size: int, complete: asyncio.Future[list[bytes]]) -> None:
        self.size = size
        self.complete = complete
        self.blobs: dict[int, bytes] = {}

    def missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.blobs]


class _Refused(Exception):
    """A request that makes no sense; its text goes to the client."""


class _Server:
    """What runs on the event loop of the store's thread; only `_values` is shared with others."""

    def __init__(self, store: Store) -> None:
        import asyncio

        self._asyncio = asyncio
        self._store = store
        self._rounds: dict[str, _Round] = {}
        self._awaited: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._unproven = asyncio.Semaphore(UNPROVEN_LIMIT)
        self._offenders: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Accepts until the stop pipe is closed."""
        loop = self._asyncio.get_running_loop()
        stopped = self._asyncio.Event()
        loop.add_reader(self._store._stop_reader, stopped.set)
        accepting = loop.create_task(self._accept())
        await stopped.wait()
        loop.remove_reader(self._store._stop_reader)
        accepting.cancel()
        for task in list(self._tasks):
            task.cancel()
        await self._asyncio.gather(accepting, *self._tasks, return_exceptions=True)

    async def _accept(self) -> None:
        loop = self._asyncio.get_running_loop()
        while True:
            await self._unproven.acquire()
            try:
                sock, peer = await loop.sock_accept(self._store._listener)
            except OSError as error:  # out of descriptors, or the peer has already gone
                self._report("the listening socket", f"accept failed: {error}")
                self._unproven.release()
                await self._asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            task = loop.create_task(self._connection(sock, str(peer[0])))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connection(self, sock: socket.socket, peer: str) -> None:
        with sock:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(sock)
            try:
                try:
                    await self._asyncio.wait_for(
                        connection.authenticate(self._store.key), HANDSHAKE_SECONDS
                    )
                finally:
                    self._unproven.release()
                while True:
                    await self._answer(connection, await connection.receive())
            except AuthenticationError as error:
                self._report(peer, str(error))
            except TimeoutError:
                self._report(peer, f"it proved nothing within {HANDSHAKE_SECONDS:g} s")
            except OSError:
                return  # it hung up: a worker that has ended, or a port scan

    def _report(self, peer: str, reason: str) -> None:
        """Once per address, and for a bounded number of addresses."""
        if peer in self._offenders or len(self._offenders) >= OFFENDERS_LOGGED:
            return
        self._offenders.add(peer)
        self._store._log(
            f"rendezvous: closed a connection from {peer}: {reason} "
            "(further ones from there are not mentioned)"
        )

    async def _answer(self, connection: _Connection, request: list[Any]) -> None:
        try:
            match request:
                case ["exchange", str(scope), int(rank), int(size), bytes(blob), every]:
                    await self._exchange(connection, scope, rank, size, blob, float(every))
                case ["set", str(scope), str(key), bytes(value)]:
                    self._set((scope, key), value)
                    await connection.send(["done", None])
                case ["get", str(scope), str(key)]:
                    await connection.send(["value", await self._get(connection, (scope, key))])
                case _:
                    raise _Refused("the launcher does not know this request")
        except _Refused as error:
            await connection.send(["error", str(error)])

    async def _exchange(
        self, connection: _Connection, scope: str, rank: int, size: int, blob: bytes, every: float
    ) -> None:
        loop = self._asyncio.get_running_loop()
        if not 0 <= rank < size <= RANK_LIMIT:
            raise _Refused(f"there is no rank {rank} of {size}")
        current = self._rounds.setdefault(scope, _Round(size, loop.create_future()))
        if size != current.size:
            raise _Refused(
                f"rank {rank} came to rendezvous '{scope}' as one of {size} ranks, others as ranks "
                f"of {current.size}; all processes of a job must have the same HOROVOD_SIZE"
            )
        if rank in current.blobs:
            raise _Refused(
                f"two processes came to rendezvous '{scope}' as rank {rank}; each rank's process "
                "must be started once"
            )
        current.blobs[rank] = blob
        if len(current.blobs) == size:
            del self._rounds[scope]
            current.complete.set_result([current.blobs[r] for r in range(size)])
        try:
            while not await connection.wait(current.complete, max(every, 0.1)):
                await connection.send(["waiting", current.missing()])
        except BaseException:
            if not current.complete.done():  # it gave up: to the others it is missing again
                del current.blobs[rank]
                if not current.blobs:
                    del self._rounds[scope]
            raise
        await connection.send(["all", current.complete.result()])

    def _set(self, where: tuple[str, str], value: bytes) -> None:
        take = self._store.takers.get(where[0])
        if take is not None:
            try:
                take(where[1], value)
            except ValueError as error:
                raise _Refused(str(error)) from None
            return
        self._store.set_value(*where, value)
        awaited = self._awaited.pop(where, None)
        if awaited is not None:
            awaited.set_result(None)

    async def _get(self, connection: _Connection, where: tuple[str, str]) -> bytes:
        value = self._store.value(*where)
        while value is None:
            loop = self._asyncio.get_running_loop()
            awaited = self._awaited.setdefault(where, loop.create_future())
            await connection.wait(awaited, None)
            value = self._store.value(*where)
        return value


class _Connection:
    """One client's socket on the event loop."""

    def __init__(self, sock: socket.socket) -> None:
        import asyncio

        self._asyncio = asyncio
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._seals: Seals

    async def authenticate(self, key: bytes) -> None:
        handshake = ServerHandshake(key, STORE_PURPOSE, bytes(await self._read(NONCE_BYTES)))
        await self._loop.sock_sendall(self._socket, handshake.reply)
        self._seals = handshake.accept(bytes(await self._read(PROOF_BYTES)))

    async def receive(self) -> list[Any]:
        header = await self._read(HEADER_BYTES)
        body = await self._read(Seal.body_length(header))
        self._seals.incoming.check(header, body)
        message = msgpack.unpackb(body)
        return message if isinstance(message, list) else [message]

    async def send(self, message: list[Any]) -> None:
        body: bytes = msgpack.packb(message)
        await self._loop.sock_sendall(self._socket, self._seals.outgoing.header(body) + body)

    async def wait(self, awaited: asyncio.Future[Any], seconds: float | None) -> bool:
        """True when `awaited` is done, False after `seconds`; OSError when the client hangs up.

        A client that waits for an answer sends nothing, so whatever can be read is its end.
        """
        hung_up = self._loop.create_task(self._loop.sock_recv(self._socket, 1))
        try:
            done, _ = await self._asyncio.wait(
                (awaited, hung_up), timeout=seconds, return_when=self._asyncio.FIRST_COMPLETED
            )
        finally:
            hung_up.cancel()
            await self._asyncio.wait((hung_up,))
        if awaited in done:
            return True
        if hung_up in done:
            raise ConnectionError("hung up while it waited")
        return False

    async def _read(self, count: int) -> bytearray:
        data = bytearray()
        while len(data) < count:
            piece = await self._loop.sock_recv(
                self._socket, min(count - len(data), RECEIVE_STEP_BYTES)
            )
            if not piece:
                raise ConnectionError("hung up")
            data += piece
        return data
