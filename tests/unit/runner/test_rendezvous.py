"""The authenticated store: all-gather, values, and what strangers can't do to it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from horovod.common import rendezvous
from horovod.common.rendezvous import (
    HEADER_BYTES,
    AuthenticationError,
    RendezvousClient,
    RendezvousError,
    authenticate,
)
from horovod.runner import store as store_module
from horovod.runner.store import Store

KEY = b"k" * 32
PATIENCE = 20.0


class Log(list):
    """What the store said; can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def __call__(self, text: str) -> None:
        self.append(text)
        self.event.set()


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def store(log: Log) -> Iterator[Store]:
    running = Store(KEY, log)
    running.start()
    yield running
    running.stop()


def client(store: Store, key: bytes = KEY, timeout: float = PATIENCE) -> RendezvousClient:
    return RendezvousClient(store.address, store.port, key, timeout)


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def test_exchange_gives_every_rank_all_blobs_in_order(store: Store) -> None:
    def rank(number: int) -> list[list[bytes]]:
        with client(store) as mine:
            return [
                mine.exchange(scope, number, 20, f"{scope}{number}".encode(), PATIENCE)
                for scope in ("a", "b", "b")
            ]

    for seen in in_threads(20, rank):
        assert seen == [[f"{s}{n}".encode() for n in range(20)] for s in ("a", "b", "b")]


def test_local_address_is_the_one_the_store_sees(store: Store) -> None:
    with client(store) as mine:
        assert mine.local_address == "127.0.0.1"


def test_who_waits_is_told_who_is_missing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "REPORT_SECONDS", 0.1)
    told: list[list[int]] = []
    come = threading.Event()

    def waiting(missing: list[int]) -> None:
        told.append(missing)
        come.set()

    def rank(number: int) -> list[bytes]:
        if number == 1:
            assert come.wait(PATIENCE)
        with client(store) as mine:
            return mine.exchange("s", number, 2, b"%d" % number, PATIENCE, waiting)

    assert in_threads(2, rank) == [[b"0", b"1"]] * 2
    assert told[0] == [1]


def test_timeout_names_the_missing_ranks_and_they_count_as_missing_again(store: Store) -> None:
    with (
        client(store) as mine,
        pytest.raises(TimeoutError, match=r"rank 0 of 3 .* rank\(s\) \[1, 2\]"),
    ):
        mine.exchange("s", 0, 3, b"", 0.4)
    with pytest.raises(OSError), mine:  # closed: its stream is in an unknown state
        mine.set("s", "k", b"")

    def rank(number: int) -> int:
        with client(store) as again:
            return len(again.exchange("s", number, 3, b"", PATIENCE))

    assert in_threads(3, rank) == [3, 3, 3]


def test_two_processes_of_one_rank_and_different_sizes_are_refused(store, monkeypatch) -> None:
    monkeypatch.setattr(rendezvous, "REPORT_SECONDS", 0.1)
    there = threading.Event()
    with client(store) as first, client(store) as other, ThreadPoolExecutor(1) as pool:
        report = lambda missing: there.set()  # noqa: E731
        waiting = pool.submit(first.exchange, "s", 0, 2, b"", PATIENCE, report)
        assert there.wait(PATIENCE)
        with pytest.raises(RendezvousError, match="two processes"):
            other.exchange("s", 0, 2, b"", PATIENCE)
        with pytest.raises(RendezvousError, match="same HOROVOD_SIZE"):
            other.exchange("s", 1, 9, b"", PATIENCE)
        with pytest.raises(RendezvousError, match="no rank 2 of 2"):
            other.exchange("s", 2, 2, b"", PATIENCE)
        assert len(other.exchange("s", 1, 2, b"", PATIENCE)) == 2
        assert len(waiting.result()) == 2


def test_values_can_be_awaited_and_replaced(store: Store) -> None:
    store.set_value("given", "k", b"early")
    with client(store) as mine, ThreadPoolExecutor(1) as pool:
        assert mine.get("given", "k", PATIENCE) == b"early"
        later = pool.submit(mine.get, "s", "k", PATIENCE)
        with client(store) as other:
            other.set("s", "k", b"x" * 3_000_000)
            assert later.result() == b"x" * 3_000_000
            other.set("s", "k", b"new")
        assert mine.get("s", "k", PATIENCE) == b"new"
        assert store.values("s") == [("k", b"new")]
        with pytest.raises(TimeoutError, match="nobody set 'none'"):
            mine.get("s", "none", 0.1)


def test_messages_beyond_the_limit_are_refused_by_the_sender(store, monkeypatch) -> None:
    monkeypatch.setattr(rendezvous, "MAX_MESSAGE_BYTES", 1000)
    with client(store) as mine:
        with pytest.raises(ValueError, match="too long"):
            mine.set("s", "k", bytes(2000))
        mine.set("s", "k", b"still usable")


def test_wrong_key_is_noticed_on_both_sides(store: Store, log: Log) -> None:
    with pytest.raises(AuthenticationError):
        client(store, key=b"x" * 32)
    with client(store) as good:
        good.set("s", "k", b"v")


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x" * 100,
        (1 << 30).to_bytes(4, "big") + b"\x00" * 100,
        b"\xff" * 5000,
        os.urandom(64),
    ],
)
def test_garbage_is_closed_logged_once_and_harms_nobody(
    store, log, garbage: bytes, stranger: Callable[..., bytes]
) -> None:
    for _ in range(3):
        assert len(stranger((store.address, store.port), garbage)) <= 64
    with client(store) as good:
        good.set("s", "k", b"v")
    assert log.event.wait(PATIENCE)
    assert len(log) == 1
    assert "127.0.0.1" in log[0] and "key of this job" in log[0]
    assert KEY.decode() not in log[0]


def test_silent_strangers_are_hung_up_on_and_do_not_keep_others_out(log, monkeypatch) -> None:
    monkeypatch.setattr(store_module, "UNPROVEN_LIMIT", 3)
    monkeypatch.setattr(store_module, "HANDSHAKE_SECONDS", 0.2)
    running = Store(KEY, log)
    running.start()
    strangers = [socket.create_connection((running.address, running.port)) for _ in range(10)]
    try:
        with client(running) as good:
            good.set("s", "k", b"v")
        for stranger in strangers[:3]:
            stranger.settimeout(PATIENCE)
            assert stranger.recv(1) == b""
        assert len(log) == 1 and "proved nothing" in log[0]
    finally:
        for stranger in strangers:
            stranger.close()
        running.stop()


def proven_raw_connection(store: Store) -> tuple[socket.socket, rendezvous.Seals]:
    sock = socket.create_connection((store.address, store.port))
    deadline = time.monotonic() + PATIENCE
    return sock, rendezvous.handshake(sock, KEY, "client", rendezvous.STORE_PURPOSE, deadline)


@pytest.mark.parametrize("change", ["body", "replay", "length"])
def test_altered_or_replayed_messages_end_the_connection(store, log, change: str) -> None:
    sock, seals = proven_raw_connection(store)
    sock.settimeout(PATIENCE)
    body = rendezvous.msgpack.packb(["set", "s", "k", b"v"])
    frame = seals.outgoing.header(body) + body
    with sock:
        if change == "replay":
            sock.sendall(frame)
            assert len(sock.recv(HEADER_BYTES, socket.MSG_WAITALL)) == HEADER_BYTES
            sock.sendall(frame)
        elif change == "body":
            sock.sendall(frame[:-1] + b"X")
        else:
            sock.sendall(b"\xff\xff\xff\xff" + frame[4:])
        assert log.event.wait(PATIENCE)
    expected = "announced" if change == "length" else "did not come from the proven peer"
    assert expected in log[0]


def test_unknown_requests_are_answered_with_an_error(store: Store) -> None:
    with client(store) as mine:
        deadline = time.monotonic() + PATIENCE
        for request in (["drop", "all"], ["set", "s", "k", "text"], ["set"], [1, 2]):
            mine._send(request, deadline)
            with pytest.raises(RendezvousError, match="does not know this request"):
                mine._receive(deadline)


def test_nobody_there_is_a_connection_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionError, match=f"cannot reach the rendezvous .*:{port}"):
        RendezvousClient("127.0.0.1", port, KEY, 5.0)


def pair(
    server_key: bytes, client_key: bytes, purposes: tuple[str, str]
) -> list[BaseException | None]:
    ends = socket.socketpair()

    def side(index: int) -> BaseException | None:
        with ends[index] as sock:
            sock.settimeout(7.5)
            try:
                role = ("server", "client")[index]
                authenticate(sock, (server_key, client_key)[index], role, purposes[index], PATIENCE)
            except OSError as error:
                return error
            assert sock.gettimeout() == 7.5
            return None

    return in_threads(2, side)


def test_authenticate_accepts_equal_keys_and_purposes_only() -> None:
    assert pair(KEY, KEY, ("tree", "tree")) == [None, None]
    for results in (
        pair(KEY, b"other" * 8, ("tree", "tree")),
        pair(KEY, KEY, ("tree", "ring")),
    ):
        assert isinstance(results[1], AuthenticationError)
        assert results[0] is not None


def test_authenticate_times_out_on_silence_and_refuses_reflection() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        with pytest.raises(TimeoutError):
            authenticate(mine, KEY, "client", "p", 0.1)
        nonce = theirs.recv(32)
        # What the client proved to somebody else is of no use: the roles differ.
        theirs.sendall(nonce + rendezvous._proof(KEY, "client", "p", nonce, nonce))
        with pytest.raises(AuthenticationError):
            authenticate(mine, KEY, "client", "p", PATIENCE)
    with pytest.raises(ValueError, match="role"):
        authenticate(mine, KEY, "both", "p", 1.0)


def test_a_store_can_be_stopped_while_clients_wait(log: Log) -> None:
    running = Store(KEY, log)
    running.start()
    with client(running) as mine, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(mine.get, "s", "never", PATIENCE)
        with client(running) as other:
            other.set("a", "b", b"")
        running.stop()
        with pytest.raises(ConnectionError):
            waiting.result()
