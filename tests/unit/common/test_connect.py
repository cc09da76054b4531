"""Bringing ranks up: here they are threads of one process, with real sockets and stand-in cores."""

from __future__ import annotations

import os
import socket
import stat
import threading
from typing import Any

import pytest
from fake_core import FakeCore

from horovod.common import bootstrap, connect, knobs
from horovod.common.bootstrap.kind import Identity, OnWaiting
from horovod.common.connect import Connection, bring_up
from horovod.common.exceptions import HorovodInternalError

KEY = b"k" * 32


class Meeting:
    """An all-gather between threads, and a kind of bootstrap for each of them."""

    def __init__(self, hosts: list[str]) -> None:
        self.hosts = hosts
        self.blobs: list[bytes] = [b""] * len(hosts)
        self.barrier = threading.Barrier(len(hosts))

    def kind(self, rank: int) -> Any:
        return _Kind(self, rank)


class _Kind:
    NAME = "a test"

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank
        self.key, self.local_address = KEY, "127.0.0.1"

    def identity(self, env: object) -> Identity:
        hosts = self._meeting.hosts
        own = hosts[self._rank]
        local_rank = hosts[: self._rank].count(own)
        names = sorted(set(hosts))
        return Identity(
            self._rank,
            len(hosts),
            local_rank,
            hosts.count(own),
            names.index(own),
            len(names),
            own,
        )

    def open_session(self, env: object, round_number: int, timeout: float) -> _Kind:
        return self

    def exchange(self, blob: bytes, timeout: float, on_waiting: OnWaiting) -> list[bytes]:
        self._meeting.blobs[self._rank] = blob
        try:
            self._meeting.barrier.wait(timeout)
        except threading.BrokenBarrierError:
            raise TimeoutError("somebody is missing") from None
        return self._meeting.blobs

    def close(self) -> None:
        pass


class PerThread:
    """`_core` of each thread that is a rank."""

    def __init__(self) -> None:
        self.local = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.local.core, name)


class World:
    """Ranks as threads."""

    def __init__(self, hosts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.size = len(hosts)
        self.meeting = Meeting(hosts)
        self.cores = [FakeCore() for _ in hosts]
        self.connections: list[Connection | None] = [None] * self.size
        self.errors: list[Exception | None] = [None] * self.size
        self.proxy = PerThread()
        monkeypatch.setattr(connect, "_core", self.proxy)
        choices = threading.local()
        self.choices = choices
        monkeypatch.setattr(
            bootstrap, "choose", lambda env: bootstrap.Choice(choices.kind, "started by a test")
        )
        # The dial thread of a rank is another thread: it inherits the rank's core.
        start_thread = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            core = getattr(self.proxy.local, "core", None)
            run = thread.run

            def run_with_core() -> None:
                if core is not None:
                    self.proxy.local.core = core
                run()

            thread.run = run_with_core  # type: ignore[method-assign]
            start_thread(thread)

        monkeypatch.setattr(threading.Thread, "start", start)

    def _rank(self, rank: int, env: dict[str, str], sets: list[list[int]]) -> None:
        self.proxy.local.core = self.cores[rank]
        self.choices.kind = self.meeting.kind(rank)
        try:
            config = knobs.config_from_environment(env)
            self.connections[rank] = bring_up(config, sets, 0, env)
        except (ValueError, HorovodInternalError) as error:
            self.errors[rank] = error

    def run(
        self, envs: dict[int, dict[str, str]] | None = None, sets: dict[int, Any] | None = None
    ) -> World:
        self.proxy.local.core = None
        threads = [
            threading.Thread(
                target=self._rank, args=(r, (envs or {}).get(r, {}), (sets or {}).get(r, []))
            )
            for r in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return self

    def stop(self) -> None:
        for core, connection in zip(self.cores, self.connections, strict=True):
            if connection is not None:
                core.shutdown()
                connection.close()


def _say(descriptor: int, text: bytes) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        sock.sendall(text)


def _hear(descriptor: int) -> bytes:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        return sock.recv(64)


def test_ranks_of_one_host_get_each_other_s_memory_and_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(["a"] * 3, monkeypatch).run()
    assert world.errors == [None] * 3
    for rank, core in enumerate(world.cores):
        started = core.started
        assert started["topology"]["hosts"] == [[0, 1, 2]]
        assert started["topology"]["host_names"] == ["a"]
        assert started["regions"].keys() == started["doorbells"].keys() == {0, 1, 2}
        assert started["host_sockets"].keys() == {0, 1, 2} - {rank}
        assert started["tree_sockets"] == {}
        assert all(os.fstat(fd).st_size == 4096 for fd in started["regions"].values())
    inodes = [
        {peer: os.fstat(fd).st_ino for peer, fd in core.started["regions"].items()}
        for core in world.cores
    ]
    assert inodes[0] == inodes[1] == inodes[2]
    _say(world.cores[0].started["host_sockets"][2], b"from 0")
    assert _hear(world.cores[2].started["host_sockets"][0]) == b"from 0"
    os.eventfd_write(world.cores[1].started["doorbells"][2], 3)
    assert os.eventfd_read(world.cores[2].started["doorbells"][2]) == 3
    assert [core.started["parent"] for core in world.cores] == [-1, 0, 0]
    world.stop()


def test_leaders_of_two_hosts_are_connected_by_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(["a", "a", "b", "b"], monkeypatch).run()
    assert world.errors == [None] * 4
    assert [list(core.started["tree_sockets"]) for core in world.cores] == [[2], [], [0], []]
    assert world.cores[0].started["children"] == [1, 2]
    assert world.cores[3].started["parent"] == 2
    assert world.cores[0].started["host_sockets"].keys() == {1}
    _say(world.cores[2].started["tree_sockets"][0], b"up")
    assert _hear(world.cores[0].started["tree_sockets"][2]) == b"up"
    world.stop()


def test_a_data_connection_is_made_when_the_core_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(["a", "b", "b"], monkeypatch).run()
    first, last = world.cores[0], world.cores[2]
    first.request_connection(2)
    first.wait_until(lambda: 2 in first.provided)
    last.wait_until(lambda: 0 in last.provided)
    _say(first.provided[2], b"data")
    assert _hear(last.provided[0]) == b"data"
    world.stop()


def test_a_data_connection_that_fails_is_reported_to_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "1")
    world = World(["a", "b"], monkeypatch).run()
    world.cores[1].shutdown()
    second = world.connections[1]
    assert second is not None
    second.close()
    world.connections[1] = None
    world.cores[0].request_connection(1)
    world.cores[0].wait_until(lambda: 1 in world.cores[0].failed)
    assert "cannot connect to rank 1 on host b" in world.cores[0].failed[1]
    world.stop()


def test_a_rank_that_may_not_share_memory_becomes_its_own_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(["a"] * 3, monkeypatch).run({1: {"HOROVOD_ARENA_DISABLE": "1"}})
    assert world.errors == [None] * 3
    assert world.cores[0].started["topology"]["hosts"] == [[0, 2], [1]]
    assert world.cores[1].started["regions"].keys() == {1}
    assert world.cores[1].started["tree_sockets"].keys() == {0}
    world.stop()


def test_different_process_sets_fail_everywhere_and_leave_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    world = World(["a", "a"], monkeypatch).run(sets={0: [[0]], 1: [[0], [1]]})
    for error in world.errors:
        assert isinstance(error, ValueError)
        assert "Horovod initialization failed: ranks were given different process_sets" in str(
            error
        )
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_rank_that_does_not_come_is_an_error_that_says_how_this_one_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    world = World(["a", "a"], monkeypatch)
    world.size = 1
    world.run({0: {"HOROVOD_START_TIMEOUT": "1"}})
    assert isinstance(world.errors[0], HorovodInternalError)
    text = str(world.errors[0])
    assert "not all ranks came" in text
    assert "takes itself for rank 0 of 2 on host a, started by a test" in text
    assert "--start-timeout" in text
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads


def test_a_hundred_rounds_leak_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_round() -> None:
        with monkeypatch.context() as patch:
            World(["a", "a", "b"], patch).run().stop()

    one_round()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(100):
        one_round()
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads


def test_the_memory_cannot_be_shrunk_under_a_peer_s_mapping() -> None:
    descriptor = connect._open_memory(8192)
    assert stat.S_ISREG(os.fstat(descriptor).st_mode)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    os.close(descriptor)
