"""A name for this host that is equal in all its processes and differs between containers."""

from __future__ import annotations

import hashlib
import os
import socket


def _namespace() -> str:
    # Containers of one machine may share its host name; they do not share this.
    try:
        return os.readlink("/proc/self/ns/mnt")
    except OSError:
        return ""


def host_hash(salt: str | None = None) -> str:
    """`<short host name>-<digest of full name, name space and salt>`."""
    name = socket.gethostname()
    text = "\0".join([name, _namespace(), salt or ""])
    return f"{name.partition('.')[0]}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
