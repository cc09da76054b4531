"""Serving a rank's metrics: where, for how long, and what happens when the port is taken."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator

import pytest
from metrics_samples import sample
from prometheus_client.parser import text_string_to_metric_families

from horovod.common import metrics_server
from horovod.common.bootstrap.kind import Identity

HERE = "127.0.0.1"


def identity(rank: int = 0) -> Identity:
    return Identity(rank, 2, rank, 2, 0, 1, "a")


@pytest.fixture(autouse=True)
def stopped_afterwards() -> Iterator[None]:
    yield
    metrics_server.stop()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("horovod")
    before, level = logger.propagate, logger.level
    logger.propagate = True
    logger.setLevel(logging.INFO)
    yield caplog
    logger.propagate, _ = before, logger.setLevel(level)


def free_port() -> int:
    with socket.create_server((HERE, 0)) as probe:
        return probe.getsockname()[1]


def values(port: int, address: str = HERE) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = answer.read().decode()
    return {
        one.name: one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HERE, port)) != 0


def test_each_local_rank_has_the_port_after_the_one_before() -> None:
    port = free_port()
    metrics_server.start(port, HERE, identity(1), lambda: sample(1))
    assert refuses(port)
    assert values(port + 1)["horovod_steps_total"] == 12


def test_a_scrape_shows_what_is_so_at_that_moment_and_the_process_itself() -> None:
    now = sample()
    port = free_port()
    metrics_server.start(port, HERE, identity(), lambda: now)
    assert values(port)["horovod_steps_total"] == 12
    now["steps"] = 13
    found = values(port)
    assert found["horovod_steps_total"] == 13
    assert found["process_resident_memory_bytes"] > 1e6


def test_without_a_port_nothing_is_served_and_no_thread_begins() -> None:
    before = threading.active_count()
    metrics_server.start(None, HERE, identity(), sample)
    assert threading.active_count() == before


def test_it_ends_at_once_and_begins_again() -> None:
    port = free_port()
    for steps in (1, 2, 3):
        metrics_server.start(
            port, HERE, identity(), lambda steps=steps: {**sample(), "steps": steps}
        )
        assert values(port)["horovod_steps_total"] == steps
        metrics_server.stop()
        assert refuses(port)
    assert not [one for one in threading.enumerate() if one.name == "horovod-metrics"]


def test_it_listens_at_ipv6_addresses_too() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
            port = probe.getsockname()[1]
    except OSError:
        pytest.skip("this machine has no IPv6")
    metrics_server.start(port, "::1", identity(), sample)
    assert values(port, "[::1]")["horovod_steps_total"] == 12


def test_a_port_in_use_is_one_clear_error_and_no_more(said: pytest.LogCaptureFixture) -> None:
    with socket.create_server((HERE, 0)) as holder:
        port = holder.getsockname()[1]
        metrics_server.start(port, HERE, identity(), sample)
    errors = [record.getMessage() for record in said.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    for part in (
        "rank 0 on host a",
        f"{HERE}, port {port} (HOROVOD_METRICS_PORT={port} + local rank 0)",
        "Address already in use",
        "--metrics-port",
        f"ss -ltnp 'sport = :{port}'",
        "Training goes on",
    ):
        assert part in errors[0]


@pytest.mark.parametrize(
    ("port", "address", "text"),
    [
        (65535, HERE, "there is no port 65536, ports go from 1 to 65535"),
        (70000, HERE, "there is no port 70001"),
        (9090, "no.such.host.invalid", "no.such.host.invalid"),
        (9090, "203.0.113.1", "Cannot assign requested address"),
    ],
)
def test_places_that_do_not_exist_are_errors_and_training_goes_on(
    said, port, address, text
) -> None:
    metrics_server.start(port, address, identity(1), sample)
    (record,) = [record for record in said.records if record.levelno == logging.ERROR]
    assert text in record.getMessage() and "rank 1 on host a" in record.getMessage()


def test_a_forked_child_does_not_hold_the_port() -> None:
    port = free_port()
    metrics_server.start(port, HERE, identity(), sample)
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(hold, 1)
        os._exit(0)
    try:
        assert values(port)["horovod_steps_total"] == 12
        metrics_server.stop()
        assert refuses(port)
        metrics_server.start(port, HERE, identity(), sample)  # the address is free
        assert values(port)["horovod_steps_total"] == 12
    finally:
        os.write(release, b"!")
        os.waitpid(child, 0)
        os.close(hold)
        os.close(release)


def test_a_client_that_says_nothing_keeps_nobody_from_reading() -> None:
    port = free_port()
    metrics_server.start(port, HERE, identity(), sample)
    with socket.create_connection((HERE, port)), socket.create_connection((HERE, port)):
        assert values(port)["horovod_steps_total"] == 12
        metrics_server.stop()
    assert refuses(port)


def test_it_does_not_keep_the_process_alive() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from metrics_samples import sample\n"
        "from horovod.common import metrics_server\n"
        "from horovod.common.bootstrap.kind import Identity\n"
        "metrics_server.start(int(sys.argv[2]), '127.0.0.1', Identity(0, 1, 0, 1, 0, 1, 'a'), sample)\n"
        "print('up')"
    )
    command = [sys.executable, "-c", code, os.path.dirname(__file__), str(free_port())]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"up\n", b"")


def test_signals_still_reach_the_program_while_metrics_are_served() -> None:
    caught = threading.Event()
    before = signal.signal(signal.SIGUSR2, lambda *_: caught.set())
    try:
        metrics_server.start(free_port(), HERE, identity(), sample)
        os.kill(os.getpid(), signal.SIGUSR2)
        assert caught.wait(20)
    finally:
        signal.signal(signal.SIGUSR2, before)
