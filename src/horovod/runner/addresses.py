"""At which addresses of this machine other hosts may reach the rendezvous store."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence

from horovod.common.network import is_loopback, route_address

_SIOCGIFADDR = 0x8915
_IPV6_GLOBAL = "00"


def interface_addresses() -> Iterator[tuple[str, str]]:
    """(interface, address) of this machine, without link-local ones."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:255])
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:  # no IPv4 address
                continue
            yield name, socket.inet_ntoa(answer[20:24])
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:  # a kernel without IPv6
        return
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if scope == _IPV6_GLOBAL:
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


def addresses_for(
    hosts: Iterable[str], interfaces: Sequence[str] | None, rendezvous_port: int
) -> list[str]:
    """Addresses by which `hosts` may reach this machine, the most likely first; never loopback.

    First come those that the routes to the hosts begin with. Names that can't be resolved here (aliases of
    ssh's configuration) add nothing, so all other addresses follow.

    Args:
        hosts: names or addresses, without user.
        interfaces: only addresses of these; None: of all.
        rendezvous_port: of the store.

    Raises:
        ValueError: an interface does not exist, or no address is left.
    """
    known = list(interface_addresses())
    names = {name for name, _ in known}
    for name in interfaces or ():
        if name not in names:
            raise ValueError(
                f"--network-interfaces: this machine has no interface '{name}' with an address; it has "
                f"{', '.join(sorted(names)) or 'none'}"
            )
    allowed = [
        address
        for name, address in known
        if not is_loopback(address) and (interfaces is None or name in interfaces)
    ]
    by_route: list[str] = []
    for host in hosts:
        try:
            address = route_address(host, rendezvous_port)
        except (OSError, UnicodeError):
            continue
        if address in allowed:
            by_route.append(address)
    found = list(dict.fromkeys([*by_route, *allowed]))
    if not found:
        only = "" if interfaces is None else f" of interface(s) {', '.join(interfaces)}"
        raise ValueError(
            f"this machine has no address{only} by which other hosts could reach the launcher; known are "
            f"{', '.join(address for _, address in known) or 'none'}"
        )
    return found
