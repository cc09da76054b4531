"""Whether two hosts reach each other, and how fast: one listens, the other sends for half a second."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from horovod.common.network import is_loopback
from horovod.runner.addresses import interface_addresses
from horovod.runner.doctor_checks.finding import FAILED, OK, WARNING, Finding

LISTEN_SECONDS = 40  # for how long somebody may come
CONNECT_SECONDS = 2
SEND_SECONDS = 0.5
LAST_BYTES_SECONDS = 20  # for what is under way, on a slow link
SLOW_GBIT = 0.5  # Gbit/s; below it, training waits for the network
CHUNK = 256 << 10
_COUNT_BYTES = 8
_WELCOME = b"!"


class Measurement(NamedTuple):
    """What one transfer gave; `error` is empty if it worked."""

    address: str = ""
    gbit: float = 0.0
    connect_ms: float = 0.0
    error: str = ""


def usable_addresses(interfaces: Sequence[str] | None) -> list[str]:
    """The addresses of this host, without loopback; only of these interfaces if some are given."""
    return [
        address
        for name, address in interface_addresses()
        if not is_loopback(address) and (not interfaces or name in interfaces)
    ]


def listen(token: str, seconds: float = LISTEN_SECONDS) -> int:
    """Takes one sender that knows the token, on a port that is returned; others are turned away."""
    if socket.has_dualstack_ipv6():
        server = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        server = socket.create_server(("", 0))
    port = int(server.getsockname()[1])
    deadline = time.monotonic() + seconds
    threading.Thread(target=_serve, args=(server, token.encode(), deadline), daemon=True).start()
    return port


def _serve(server: socket.socket, token: bytes, deadline: float) -> None:
    with server:
        connection = _known_sender(server, token, deadline)
    if connection is None:
        return
    with connection, contextlib.suppress(OSError):  # the sender reports what it has seen
        connection.sendall(_WELCOME)
        connection.settimeout(LAST_BYTES_SECONDS)
        _count(connection)


def _known_sender(server: socket.socket, token: bytes, deadline: float) -> socket.socket | None:
    while (left := deadline - time.monotonic()) > 0:
        server.settimeout(left)
        with contextlib.suppress(OSError):  # it gave up or was a stranger
            connection, _ = server.accept()
            with contextlib.ExitStack() as refused:
                refused.enter_context(connection)
                connection.settimeout(CONNECT_SECONDS)
                if hmac.compare_digest(_receive(connection, len(token)), token):
                    refused.pop_all()
                    return connection
    return None


def _count(connection: socket.socket) -> None:
    buffer = bytearray(CHUNK)
    count = 0
    while received := connection.recv_into(buffer):
        count += received
    connection.sendall(count.to_bytes(_COUNT_BYTES, "big"))


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := connection.recv(count - len(data))):
        data += piece
    return data


def send(
    addresses: Sequence[str], port: int, token: str, seconds: float = SEND_SECONDS
) -> Measurement:
    """Sends to the first address at which the listener with this token answers."""
    reasons = []
    for address in addresses:
        started = time.perf_counter()
        try:
            connection = socket.create_connection((address, port), CONNECT_SECONDS)
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
            continue
        connect_ms = 1000 * (time.perf_counter() - started)
        with connection:
            try:
                connection.sendall(token.encode())
                if _receive(connection, 1) != _WELCOME:
                    reasons.append(f"{address}: something else answers there")
                    continue
                connection.settimeout(LAST_BYTES_SECONDS)
                return Measurement(address, _transfer(connection, seconds), connect_ms)
            except OSError as error:
                reasons.append(f"{address}: {error.strerror or error}")
    return Measurement(error="; ".join(reasons) or "it has no address other than loopback")


def _transfer(connection: socket.socket, seconds: float) -> float:
    """Gbit/s, until the last byte has arrived."""
    data = bytes(CHUNK)
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
    answer = _receive(connection, _COUNT_BYTES)
    elapsed = time.perf_counter() - started
    if len(answer) != _COUNT_BYTES:
        raise ConnectionError("the connection broke while data was under way")
    return int.from_bytes(answer, "big") * 8 / elapsed / 1e9


def judge(host: str, measured: Measurement, interfaces: Sequence[str] | None) -> Finding:
    """The finding about one direction between two hosts; `host` is `node1 -> node2`."""
    if measured.error:
        names = f" other than {','.join(interfaces)}" if interfaces else ""
        fix = (
            "let TCP through between them, all ports from 1024 on (firewall, security group, routes), or "
            f"name the network that connects them: --network-interfaces{names}"
        )
        return Finding("network", host, FAILED, f"cannot be reached: {measured.error}", fix)
    found = f"{measured.gbit:.2f} Gbit/s to {measured.address}, connected in {measured.connect_ms:.1f} ms"
    if measured.gbit < SLOW_GBIT:
        fix = (
            "look at the link's speed (ethtool) and at what else uses it; if there is a faster network, "
            "name it: --network-interfaces"
        )
        return Finding("network", host, WARNING, found, fix)
    return Finding("network", host, OK, found)


def rounds(hosts: Sequence[str]) -> list[list[tuple[str, str]]]:
    """All pairs, in rounds in which no host is busy twice (the circle method of tournaments)."""
    seats: list[str | None] = [*hosts, *([None] if len(hosts) % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found
