"""What the checks of one host look at; tests put their own in its place."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND_SECONDS = 5
GIB = 1 << 30


def run_command(words: list[str]) -> str:
    """What a command says on standard output or error; OSError if it can't be had."""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{words[0]} did not end within {COMMAND_SECONDS} s") from None
    return (done.stdout or done.stderr).decode(errors="replace")


def installed_version(package: str) -> str | None:
    """The version of a package by its metadata, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_importable(module: str) -> bool:
    """Whether Python finds a module; its parent is imported, the module is not."""
    return importlib.util.find_spec(module) is not None


@dataclass
class Here:
    """One host as its own Python sees it. `root` stands for /, in front of every path."""

    host: str
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    python: tuple[int, ...] = tuple(sys.version_info[:3])
    affinity: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    online: int = field(default_factory=lambda: os.cpu_count() or 1)
    limit: Callable[[int], tuple[int, int]] = resource.getrlimit
    version: Callable[[str], str | None] = installed_version
    importable: Callable[[str], bool] = is_importable
    which: Callable[[str], str | None] = shutil.which
    command: Callable[[list[str]], str] = run_command
    load: Callable[[str], Any] = ctypes.CDLL
    memfd: Callable[[str], int] = os.memfd_create
    own_name: Callable[[], str] = socket.gethostname
    resolve: Callable[..., Any] = socket.getaddrinfo

    def read(self, path: str) -> str | None:
        """The text of a file of the kernel's; None where it has no such file."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None

    def cgroup_texts(self, v2_name: str, controller: str, v1_name: str) -> Iterator[str]:
        """The texts of a file in our cgroup and in all above it; the version of the kernel decides which."""
        for line in (self.read("proc/self/cgroup") or "").splitlines():
            _, controllers, place = (line.split(":", 2) + ["", ""])[:3]
            if not controllers:
                base, name = "sys/fs/cgroup", v2_name
            elif controller in controllers.split(","):
                base, name = f"sys/fs/cgroup/{controller}", v1_name
            else:
                continue
            # In a container the path is often that of the host, and only the top is to be seen.
            parts = [part for part in place.split("/") if part not in ("", "..")]
            for count in range(len(parts), -1, -1):
                text = self.read("/".join([base, *parts[:count], name]))
                if text is not None:
                    yield text
