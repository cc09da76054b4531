"""Which addresses lead where."""

from __future__ import annotations

import socket

# An address of RFC 5737 that belongs to nobody: only asked which local address would reach it.
_ANYWHERE = "192.0.2.1"


def route_address(target: str, port: int) -> str:
    """Returns the local address from which `target` is reached; sends nothing."""
    family, kind, protocol, _, address = socket.getaddrinfo(target, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(address)
        return str(sock.getsockname()[0])


def outward_address() -> str | None:
    """Returns the local address of the default route, or None when there is no such route."""
    try:
        return route_address(_ANYWHERE, 9)
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    """True for addresses that another machine can't reach this one by."""
    return address.startswith("127.") or address == "::1"
