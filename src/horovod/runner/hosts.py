"""Which hosts take part, with how many slots, and which rank goes where."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

from horovod.runner import host_grammar
from horovod.runner.host_grammar import UNKNOWN_SLOTS

__all__ = [
    "UNKNOWN_SLOTS",
    "HostInfo",
    "SlotInfo",
    "format_hosts",
    "get_host_assignments",
    "host_name",
    "is_this_machine",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
    "read_host_lines",
    "read_hostfile",
]


class HostInfo(NamedTuple):
    """A host and how many workers it may run.

    `hostname` is what ssh is given: `user@node1`, or an IPv6 address without brackets. `slots` is
    UNKNOWN_SLOTS for a host that was given without slots.
    """

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> HostInfo:
        """Reads one `name:slots`; raises ValueError."""
        entry = host_grammar.read_single(host_string)
        return HostInfo(entry.target, entry.slots)


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


def parse_hosts(
    hosts_string: str, note: Callable[[str], None] | None = None, *, slots_required: bool = False
) -> list[HostInfo]:
    """Reads `name:slots,name:slots`, the form of `-H`; a host without slots has UNKNOWN_SLOTS.

    A host that stands there twice is one, with the slots of both; `note` is told so. Raises ValueError
    with the column of what is wrong.
    """
    entries = host_grammar.read_list(hosts_string, note, slots_required=slots_required)
    return [HostInfo(entry.target, entry.slots) for entry in entries]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names in order, and the slots of each, which must be given."""
    parsed = parse_hosts(hosts, slots_required=True)
    return [host.hostname for host in parsed], {host.hostname: host.slots for host in parsed}


def read_hostfile(path: str, note: Callable[[str], None] | None = None) -> list[HostInfo]:
    """Reads a host file (docs/hosts.md); otherwise like parse_hosts. ValueError: `path:line:column: ...`."""
    with open(path, "rb") as file:
        return read_host_lines(path, file.read(), note)


def read_host_lines(
    path: str, data: bytes, note: Callable[[str], None] | None = None
) -> list[HostInfo]:
    """What a host file with these bytes says; `path` is for the messages."""
    entries = host_grammar.read_file(path, data, note)
    return [HostInfo(entry.target, entry.slots) for entry in entries]


def parse_host_files(filename: str) -> str:
    """A host file in the form of `-H`."""
    return format_hosts(read_hostfile(filename))


def format_hosts(hosts: list[HostInfo]) -> str:
    """The form of `-H`, which parse_hosts reads."""
    return ",".join(_format_host(*host) for host in hosts)


def _format_host(target: str, slots: int) -> str:
    user, at, name = target.rpartition("@")
    bracketed = f"[{name}]" if ":" in name else name
    return f"{user}{at}{bracketed}" + ("" if slots == UNKNOWN_SLOTS else f":{slots}")


def host_name(target: str) -> str:
    """The name or address in what ssh is given: `node1` of `user@node1`."""
    return target.rpartition("@")[2]


def get_host_assignments(
    hosts: list[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Fills the hosts in order with ranks: all slots, or up to `max_num_proc` of them.

    Raises ValueError when there are fewer slots than `min_num_proc`, or a host's slots are not known.
    """
    unknown = [host.hostname for host in hosts if host.slots == UNKNOWN_SLOTS]
    if unknown:
        raise ValueError(
            f"the number of slots is not known of: {', '.join(unknown)}; give it, as in "
            f"{_format_host(unknown[0], 2)}"
        )
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
