"""Connections between ranks over real sockets: the proof, descriptors, strangers."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from horovod.common import peers
from horovod.common.log import logger
from horovod.common.peers import (
    Acceptor,
    ConnectionKind,
    Credentials,
    Dialer,
    listen_tcp,
    listen_unix,
)
from horovod.common.rendezvous import AuthenticationError

KEY = b"k" * 32
PURPOSE = "rank-to-rank/0"


def _descriptors() -> list[int]:
    return [os.memfd_create("test"), os.eventfd(0)]


class Listening:
    """Rank 1 of 2 with both listeners."""

    def __init__(self) -> None:
        self.tcp = listen_tcp("127.0.0.1")
        unix, self.unix_name = listen_unix()
        self.address = self.tcp.getsockname()
        self.descriptors = _descriptors()
        credentials = Credentials(KEY, PURPOSE, 1)
        self.acceptor = Acceptor(credentials, [self.tcp, unix], 2, self.descriptors)
        self.acceptor.start()


@pytest.fixture
def listening() -> Iterator[Listening]:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    rank1 = Listening()
    yield rank1
    rank1.acceptor.close()
    peers.close_all(rank1.descriptors)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.fixture
def logged() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def _deadline(seconds: float = 20) -> float:
    return time.monotonic() + seconds


def _dialer(key: bytes = KEY, purpose: str = PURPOSE, rank: int = 0) -> Dialer:
    return Dialer(Credentials(key, purpose, rank))


def test_a_tcp_connection_carries_bytes_after_the_hello(listening: Listening) -> None:
    ours = _dialer().dial(listening.address, ConnectionKind.TREE, 1, (), _deadline())
    theirs = listening.acceptor.wait_for(ConnectionKind.TREE, [0], 20)[0]
    ours.sock.sendall(b"first bytes")
    assert theirs.sock.recv(64) == b"first bytes"
    assert ours.sock.gettimeout() is None
    ours.close()
    theirs.close()


def test_memory_and_doorbell_are_passed_both_ways_over_a_unix_socket(listening: Listening) -> None:
    mine = _descriptors()
    os.write(mine[0], b"mine")
    os.write(listening.descriptors[0], b"theirs")
    ours = _dialer().dial(listening.unix_name, ConnectionKind.HOST, 1, mine, _deadline())
    theirs = listening.acceptor.wait_for(ConnectionKind.HOST, [0], 20)[0]
    assert os.pread(ours.descriptors[0], 16, 0) == b"theirs"
    assert os.pread(theirs.descriptors[0], 16, 0) == b"mine"
    assert not os.get_inheritable(theirs.descriptors[0])
    os.eventfd_write(mine[1], 7)
    assert os.eventfd_read(theirs.descriptors[1]) == 7
    ours.close()
    theirs.close()
    peers.close_all(mine)


@pytest.mark.parametrize("wrong", [{"key": b"x" * 32}, {"purpose": "rank-to-rank/1"}])
def test_a_wrong_key_or_round_is_refused(
    listening: Listening, logged: list[str], wrong: dict[str, object]
) -> None:
    with pytest.raises(AuthenticationError):
        _dialer(**wrong).dial(listening.address, ConnectionKind.TREE, 1, (), _deadline())


def test_the_dialler_notices_when_another_rank_answers(listening: Listening) -> None:
    with pytest.raises(AuthenticationError, match="rank 1 answered instead of rank 5"):
        _dialer().dial(listening.address, ConnectionKind.TREE, 5, (), _deadline())


def test_a_host_connection_over_tcp_is_refused(listening: Listening, logged: list[str]) -> None:
    with pytest.raises(OSError):
        _dialer().dial(listening.address, ConnectionKind.HOST, 1, (), _deadline(0.05))


def test_strangers_neither_block_peers_nor_fill_the_log(
    listening: Listening, logged: list[str]
) -> None:
    strangers = []
    for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n" * 8, b"\xff" * 4096) * 50:
        stranger = socket.create_connection(listening.address)
        if garbage:
            stranger.sendall(garbage)
        strangers.append(stranger)
    ours = _dialer().dial(listening.address, ConnectionKind.TREE, 1, (), _deadline())
    listening.acceptor.wait_for(ConnectionKind.TREE, [0], 20)[0].close()
    assert len(listening.acceptor._unproven) <= peers.MAX_HANDSHAKES
    ours.close()
    for stranger in strangers:
        stranger.close()
    assert sum("not part of the job" in line for line in logged) == 1


def test_data_connections_go_to_the_core_at_once_after_the_start(listening: Listening) -> None:
    early = _dialer().dial(listening.address, ConnectionKind.DATA, 1, (), _deadline())
    taken: list[int] = []
    arrived = threading.Semaphore(0)

    def take(rank: int, sock: socket.socket) -> None:
        taken.append(rank)
        sock.close()
        arrived.release()

    assert listening.acceptor.wait_for(ConnectionKind.TREE, [0], 0) == {}
    deadline = _deadline()
    while not listening.acceptor._arrived and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    listening.acceptor.deliver_data_to(take)
    late = _dialer().dial(listening.address, ConnectionKind.DATA, 1, (), _deadline())
    assert arrived.acquire(timeout=20)
    assert arrived.acquire(timeout=20)
    assert taken == [0, 0]
    early.close()
    late.close()


def test_nobody_may_come_for_memory_after_the_start(
    listening: Listening, logged: list[str]
) -> None:
    listening.acceptor.deliver_data_to(lambda rank, sock: sock.close())
    mine = _descriptors()
    with pytest.raises(OSError):
        _dialer().dial(listening.unix_name, ConnectionKind.HOST, 1, mine, _deadline(0.05))
    peers.close_all(mine)


def test_a_dialler_tries_again_until_somebody_listens() -> None:
    probe = listen_tcp("127.0.0.1")
    address = probe.getsockname()
    probe.close()
    dialer = _dialer()
    with pytest.raises(ConnectionRefusedError):
        dialer.dial(address, ConnectionKind.TREE, 1, (), _deadline(0.1))


def test_small_writes_are_not_held_back_on_either_side(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    delayed: list[bool] = []
    authenticate: Callable[..., None] = peers.authenticate

    def observed(sock: socket.socket, *arguments: object) -> None:
        delayed.append(not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        authenticate(sock, *arguments)

    monkeypatch.setattr(peers, "authenticate", observed)
    ours = _dialer().dial(listening.address, ConnectionKind.TREE, 1, (), _deadline())
    listening.acceptor.wait_for(ConnectionKind.TREE, [0], 20)[0].close()
    ours.close()
    assert delayed == [False, False]


def test_stop_ends_an_attempt_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = listen_tcp("127.0.0.1")
    dialer = _dialer()
    failed: list[Exception] = []
    dialling = threading.Event()
    authenticate: Callable[..., None] = peers.authenticate

    def observed(*arguments: object) -> None:
        dialling.set()
        authenticate(*arguments)

    monkeypatch.setattr(peers, "authenticate", observed)

    def run() -> None:
        try:
            dialer.dial(silent.getsockname(), ConnectionKind.TREE, 1, (), _deadline(1000))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert dialling.wait(20)
    dialer.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert failed
    silent.close()


def test_close_hangs_up_on_connections_nobody_took(listening: Listening) -> None:
    ours = _dialer().dial(listening.address, ConnectionKind.TREE, 1, (), _deadline())
    listening.acceptor.close()
    assert ours.sock.recv(1) == b""
    ours.close()
