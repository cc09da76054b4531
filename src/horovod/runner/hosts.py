"""Which hosts take part, with how many slots, and which rank goes where."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# A name, an IPv4 address, or an IPv6 address in brackets; then the slots.
_HOST = re.compile(r"(?P<name>[\w.-]+|\[[0-9A-Fa-f:.%\w]+\]):(?P<slots>[0-9]+)")
_HOSTFILE_LINE = re.compile(r"(?P<name>\S+)\s+slots\s*=\s*(?P<slots>\d+)\s*")
_INVALID = "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2."


class HostInfo(NamedTuple):
    """A host and how many workers it may run."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Reads `name:slots`; raises ValueError."""
        match = _HOST.fullmatch(host_string.strip())
        if match is None:
            raise ValueError(_INVALID + f" '{host_string}' does not have it.")
        if int(match["slots"]) < 1:
            raise ValueError(f"host '{match['name']}' must have at least one slot, not 0")
        return HostInfo(match["name"].strip("[]"), int(match["slots"]))


class SlotInfo(NamedTuple):
    """The place of one rank. Cross: among the hosts that have this local rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """`rank,size,local_rank,local_size,cross_rank,cross_size`."""
        return (
            f"{self.rank},{self.size},{self.local_rank},{self.local_size},"
            f"{self.cross_rank},{self.cross_size}"
        )


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Reads `name:slots,name:slots`; raises ValueError."""
    hosts = [HostInfo.from_string(part) for part in hosts_string.split(",")]
    names = [host.hostname for host in hosts]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"host '{name}' is given twice; add up its slots: {name}:<slots>")
    return hosts


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names in order, and the slots of each."""
    parsed = parse_hosts(hosts)
    return [host.hostname for host in parsed], {host.hostname: host.slots for host in parsed}


def read_hostfile(path: str) -> list[HostInfo]:
    """Reads lines `name slots=n`; blank lines and what follows a # are skipped. ValueError with the line."""
    with open(path, encoding="utf-8") as file:
        hosts = list(_hostfile_lines(path, file))
    if not hosts:
        raise ValueError(f"{path}: no host in this file; write lines such as 'worker-0 slots=2'")
    return hosts


def _hostfile_lines(path: str, lines: Iterable[str]) -> Iterator[HostInfo]:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _HOSTFILE_LINE.fullmatch(text)
        if match is None:
            raise ValueError(f"{path}:{number}: expected '<host> slots=<n>', found '{text}'")
        name, slots = match["name"].strip("[]"), int(match["slots"])
        if slots < 1:
            raise ValueError(f"{path}:{number}: host '{name}' must have at least one slot")
        if name in seen:
            raise ValueError(f"{path}:{number}: host '{name}' stands in line {seen[name]} already")
        seen[name] = number
        yield HostInfo(name, slots)


def parse_host_files(filename: str) -> str:
    """A host file in the form of `-H`."""
    hosts = read_hostfile(filename)
    return ",".join(
        f"[{host}]:{slots}" if ":" in host else f"{host}:{slots}" for host, slots in hosts
    )


def get_host_assignments(
    hosts: list[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Fills the hosts in order with ranks: all slots, or up to `max_num_proc` of them.

    Raises ValueError when there are fewer slots than `min_num_proc`.
    """
    available = sum(host.slots for host in hosts)
    if available < min_num_proc:
        raise ValueError(
            f"Requested more processes ({min_num_proc}) than there are available slots ({available})"
        )
    size = available if max_num_proc is None else min(available, max_num_proc)
    local_sizes: list[int] = []
    left = size
    for host in hosts:
        local_sizes.append(min(host.slots, left))
        left -= local_sizes[-1]
    slots: list[SlotInfo] = []
    for index, (host, local_size) in enumerate(zip(hosts, local_sizes, strict=True)):
        for local_rank in range(local_size):
            peers = [other > local_rank for other in local_sizes]
            cross_rank, cross_size = sum(peers[:index]), sum(peers)
            slots.append(
                SlotInfo(
                    host.hostname, len(slots), local_rank, cross_rank, size, local_size, cross_size
                )
            )
    return slots


def is_this_machine(name: str) -> bool:
    """Whether `name` is, or resolves to, an address of this machine."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_is_own_address(family, address) for family, _, _, _, address in found)


def _is_own_address(family: int, address: tuple[object, ...]) -> bool:
    """An address is ours when a socket can be bound to it."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
