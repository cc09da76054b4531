"""Was it the kernel's out-of-memory killer? Counts its victims as far as this process may see them."""

from __future__ import annotations

import os
from collections.abc import Iterator


def _counter_files() -> Iterator[str]:
    """The counters of our memory control group (version 2, version 1), then the machine's."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield f"/sys/fs/cgroup{path.rstrip('/')}/memory.events"
            yield "/sys/fs/cgroup/memory.events"
        elif "memory" in controllers.split(","):
            yield f"/sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control"
            yield "/sys/fs/cgroup/memory/memory.oom_control"
    yield "/proc/vmstat"


def _count(path: str) -> int | None:
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    except OSError:
        return None
    return None


class OomWatch:
    """Remembers the counters at the start of a job and says later which of them rose."""

    def __init__(self, files: list[str] | None = None) -> None:
        counts = {path: _count(path) for path in (files or _counter_files())}
        self._before = {path: count for path, count in counts.items() if count is not None}

    def evidence(self) -> str:
        """What speaks for the out-of-memory killer; empty when nothing does."""
        for path, before in self._before.items():
            now = _count(path)
            if now is not None and now > before:
                whose = "this machine" if os.path.basename(path) == "vmstat" else "this job's group"
                return (
                    f"probably the kernel's out-of-memory killer: it struck {now - before} time(s) "
                    f"in {whose} since the start ({path})"
                )
        return ""
