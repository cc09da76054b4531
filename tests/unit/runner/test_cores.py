"""The CPU limit of a container, as control groups of both versions say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.runner.cores import cpu_quota, usable_cores


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "sys/fs/cgroup"
V1 = "sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "150000 100000\n"}, 1.5),
        # The tightest of the groups above counts.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                f"{V2}/a/cpu.max": "200000 100000\n",
                f"{V2}/a/b/cpu.max": "max 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n",
                f"{V1}/x/cpu.cfs_quota_us": "50000\n",
                f"{V1}/x/cpu.cfs_period_us": "25000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/x\n",
                f"{V1}/cpu.cfs_quota_us": "-1\n",
                f"{V1}/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert cpu_quota(plant(tmp_path, files)) == quota


def test_this_process_may_use_at_least_one_core() -> None:
    assert usable_cores() >= 1
