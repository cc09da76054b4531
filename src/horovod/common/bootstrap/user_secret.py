"""A secret of the user, kept in `~/.horovod/secret`: what keys come from where no launcher gives one."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

SECRET_BYTES = 32


def default_path() -> Path:
    """Where the secret lies."""
    return Path("~/.horovod/secret").expanduser()


def read_or_make(path: Path) -> bytes:
    """Returns the secret in `path`; the process that comes first makes it.

    Raises:
        PermissionError: other users can read or replace it, or it is not this user's.
        ValueError: the file does not hold 32 bytes.
        OSError: it can be neither read nor made.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(path.parent, os.stat(path.parent), 0o022, "written to")
    if not path.exists():
        _make(path)
    # O_NOFOLLOW: the file itself is checked, not where a link would lead.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        _check(path, os.fstat(descriptor), 0o077, "read or changed")
        secret = file.read(SECRET_BYTES + 1)
    if len(secret) != SECRET_BYTES:
        raise ValueError(
            f"{path} must hold {SECRET_BYTES} bytes, not {len(secret)}; remove it, and the next job "
            "makes a new one"
        )
    return secret


def _make(path: Path) -> None:
    """Writes beside it and links, so that nobody ever sees half a file and the first one wins."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(SECRET_BYTES))
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):  # another process of this user was first
            os.link(name, path)
    finally:
        os.unlink(name)


def _check(path: Path, found: os.stat_result, forbidden: int, what: str) -> None:
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()} of this process"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & forbidden:
        raise PermissionError(
            f"{path} can be {what} by other users (mode {mode:04o}); run "
            f"chmod {mode & ~0o077:04o} {path}"
        )
