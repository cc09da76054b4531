"""How many cores a process here may use: affinity, and the quota of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_PERIOD = 100_000.0  # microseconds, where the file of version 1 does not say


def usable_cores() -> int:
    """At least 1. A container's CPU limit counts: threads beyond it only wait for each other."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the control groups of this process allow; None for no limit."""
    quotas = [quota for text in _limits(root) if (quota := _quota(text)) is not None]
    return min(quotas, default=None)


def _quota(text: str) -> float | None:
    words = text.split()
    if not words or words[0] in ("max", "-1"):
        return None
    return float(words[0]) / (float(words[1]) if len(words) > 1 else DEFAULT_PERIOD)


def _limits(root: Path) -> list[str]:
    """The limits of the group and of all above it, as "quota period" each."""
    texts = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            for folder in _upwards(root / "sys/fs/cgroup", path):
                texts.append(_read(folder / "cpu.max"))
        elif "cpu" in controllers.split(","):
            for folder in _upwards(root / "sys/fs/cgroup/cpu", path):
                period = _read(folder / "cpu.cfs_period_us")
                texts.append(f"{_read(folder / 'cpu.cfs_quota_us').strip()} {period.strip()}")
    return [text for text in texts if text.strip()]


def _upwards(base: Path, path: str) -> list[Path]:
    """The folders from `base` to the group; in a container `base` is the group itself."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [base.joinpath(*parts[:count]) for count in range(len(parts) + 1)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # no such group, or not to be seen from here
        return ""
