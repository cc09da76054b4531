"""From a rank to the launcher's store: what is sent, when, and what is refused."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from horovod.common import monitor_feed
from horovod.common.rendezvous import RendezvousClient, RendezvousError
from horovod.runner.hosts import HostInfo
from horovod.runner.monitor.board import Board
from horovod.runner.monitor.snapshot import MAX_BYTES, MAX_STRAGGLERS, decode
from horovod.runner.plan import Plan, assign, job_of_host
from horovod.runner.run_job import MONITOR_SCOPE
from horovod.runner.store import Store

KEY = b"k" * 32
PATIENCE = 30.0
METRICS: dict[str, Any] = {
    "steps": 7,
    "bytes": {"allreduce": 100, "broadcast": 11},
    "wait_seconds": 0.5,
    "operations_in_flight": 3,
    "stalls": 1,
    "straggler_seconds": {"1": 0.25},
}


class Ranks(Board):
    """A board that can be waited for."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.came = threading.Semaphore(0)

    def take(self, key: str, value: bytes) -> None:
        super().take(key, value)
        self.came.release()


@pytest.fixture
def ranks() -> Ranks:
    return Ranks(2)


@pytest.fixture
def store(ranks: Ranks) -> Iterator[Store]:
    running = Store(KEY, lambda _: None, takers={MONITOR_SCOPE: ranks.take})
    running.start()
    yield running
    monitor_feed.stop()
    running.stop()


def environment(store: Store, **changes: str) -> dict[str, str]:
    return {
        "HOROVOD_MONITOR": "0.02",
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "2",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": store.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.port),
        "_HOROVOD_SECRET_KEY": base64.b64encode(KEY).decode(),
        **changes,
    }


def feeds() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "horovod-monitor"]


def wait_until_gone(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_snapshot_is_one_that_the_launcher_reads() -> None:
    metrics = {**METRICS, "straggler_seconds": {str(n): n / 10 for n in range(1000)}}
    sent = monitor_feed.snapshot(metrics, round_number=2, now=5.0, memory=99, final=True)
    data = msgpack.packb(sent)
    assert len(data) < MAX_BYTES
    read = decode(data)
    assert (read.round, read.time, read.steps, read.bytes) == (2, 5.0, 7, 111)
    assert (read.wait, read.in_flight, read.stalls, read.memory, read.final) == (
        0.5,
        3,
        1,
        99,
        True,
    )
    assert len(read.late) <= MAX_STRAGGLERS and max(read.late.items()) == (999, 99.9)


def test_the_greatest_snapshot_fits() -> None:
    most = 2**63 - 1
    metrics = {
        **dict.fromkeys(("steps", "operations_in_flight", "stalls"), most),
        "bytes": {"allreduce": most},
        "wait_seconds": 1e300,
        "straggler_seconds": {str(10**6 + n): 1e300 for n in range(1000)},
    }
    sent = monitor_feed.snapshot(metrics, round_number=most, now=1e300, memory=most, final=False)
    assert decode(msgpack.packb(sent)).steps == most


def test_snapshots_come_again_and_again_and_a_last_one_at_the_end(store, ranks) -> None:
    monitor_feed.start(environment(store), 0, lambda: METRICS)
    for _ in range(5):
        assert ranks.came.acquire(timeout=PATIENCE)
    row = ranks.rows()[1]
    assert (row.step, row.in_flight, row.state) == (7, 3, "")
    assert row.memory is not None and row.memory > 10**6
    monitor_feed.stop()
    assert ranks.rows()[1].state == "shut down"
    assert not feeds()


def test_it_can_begin_again(store, ranks) -> None:
    for round_number in range(3):
        monitor_feed.start(environment(store), round_number, lambda: METRICS)
        assert ranks.came.acquire(timeout=PATIENCE)
        monitor_feed.stop()
    assert ranks.rows()[1].state == "shut down"


@pytest.mark.parametrize(
    "changes",
    [
        {"HOROVOD_MONITOR": ""},
        {"HOROVOD_MONITOR": "0"},
        # Started by torchrun or alone, though the variable was inherited.
        {"HOROVOD_RANK": "", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
        {"HOROVOD_RANK": "", "HOROVOD_SIZE": ""},
    ],
)
def test_nothing_is_sent_unless_horovodrun_asks(store, ranks, changes) -> None:
    monitor_feed.start(environment(store, **changes), 0, lambda: METRICS)
    assert not feeds()


def test_an_engine_that_has_stopped_ends_it(store, ranks) -> None:
    def stopped() -> dict[str, Any]:
        raise ValueError("Horovod has not been initialized; use hvd.init().")

    monitor_feed.start(environment(store), 0, stopped)
    for thread in feeds():
        wait_until_gone(thread)


def test_a_launcher_that_ends_or_never_was_ends_it_quietly(ranks) -> None:
    store = Store(KEY, lambda _: None, takers={MONITOR_SCOPE: ranks.take})
    store.start()
    env = environment(store)
    monitor_feed.start(env, 0, lambda: METRICS)
    (thread,) = feeds()
    assert ranks.came.acquire(timeout=PATIENCE)
    store.stop()
    wait_until_gone(thread)
    monitor_feed.stop()
    monitor_feed.start(env, 0, lambda: METRICS)  # nobody listens
    assert not feeds()


def test_a_stranger_can_send_nothing(store, ranks) -> None:
    wrong = base64.b64encode(b"x" * 32).decode()
    monitor_feed.start(environment(store, _HOROVOD_SECRET_KEY=wrong), 0, lambda: METRICS)
    assert not feeds()
    assert ranks.rows()[1].state == "not initialized"


def test_what_makes_no_sense_is_refused_and_the_connection_stays(store, ranks) -> None:
    with RendezvousClient(store.address, store.port, KEY, PATIENCE) as client:
        for key, value, text in (
            ("7", msgpack.packb({}), "there is no rank '7' of 2"),
            ("0", b"\x80\x04N.", "no msgpack|must be a map"),
            ("0", b"x" * 10_000, "may have 4096 bytes"),
        ):
            with pytest.raises(RendezvousError, match=text):
                client.set(MONITOR_SCOPE, key, value)
        sent = monitor_feed.snapshot(METRICS, round_number=0, now=1.0, memory=1, final=False)
        client.set(MONITOR_SCOPE, "0", msgpack.packb(sent))
    assert ranks.rows()[0].step == 7
    assert store.values(MONITOR_SCOPE) == []  # nothing is kept but the board


def test_a_forked_child_closes_its_copy_and_the_parent_goes_on(store, ranks) -> None:
    monitor_feed.start(environment(store), 0, lambda: METRICS)
    feed = monitor_feed._feed
    assert feed is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if monitor_feed._feed is None and feed._client._socket.fileno() < 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    while ranks.came.acquire(blocking=False):
        pass
    assert ranks.came.acquire(timeout=PATIENCE)


def test_stopping_does_not_wait_long_for_a_launcher_that_hangs(monkeypatch, store, ranks) -> None:
    monkeypatch.setattr(monitor_feed, "END_SECONDS", 0.2)
    held = threading.Event()
    monkeypatch.setitem(store.takers, MONITOR_SCOPE, lambda *_: held.wait(PATIENCE) and None)
    monitor_feed.start(environment(store), 0, lambda: METRICS)
    begin = time.monotonic()
    monitor_feed.stop()
    assert time.monotonic() - begin < PATIENCE / 2
    held.set()


# --- what workers are told ---


def variables(monitor_seconds: float | None, inherited: dict[bytes, bytes]) -> dict[bytes, bytes]:
    hosts = [HostInfo("localhost", 1)]
    plan = Plan(1, hosts, assign(1, hosts), ["true"], {}, monitor_seconds=monitor_seconds)
    store = Store(KEY, lambda _: None)
    store._listener.close()
    return job_of_host(plan, "localhost", store, ["127.0.0.1"], inherited).environment


def test_workers_are_told_to_send_only_with_the_monitor_and_not_by_an_outer_job() -> None:
    assert variables(10.0, {})[b"HOROVOD_MONITOR"] == b"1.0"
    assert b"HOROVOD_MONITOR" not in variables(None, {})
    assert b"HOROVOD_MONITOR" not in variables(None, {b"HOROVOD_MONITOR": b"1.0"})
