"""Cores, memory and limits of one host."""

from __future__ import annotations

import os
import resource

from horovod.runner.cores import cpu_quota
from horovod.runner.doctor_checks.finding import OK, WARNING, Finding
from horovod.runner.doctor_checks.here import GIB, Here

LEAST_FILES = 1024
LEAST_PROCESSES = 1024
LEAST_MEMORY = GIB // 2


def cores(here: Here) -> Finding:
    """How many cores this process may use, and whether a quota takes some of them back."""
    found = f"{here.affinity} usable of {here.online}"
    quota = cpu_quota(here.root)
    if quota is None:
        return Finding("cores", here.host, OK, found)
    found += f", the cgroup allows the time of {quota:g}"
    if quota < here.affinity:
        fix = (
            f"start at most {max(1, int(quota))} process(es) with one thread there, or raise the CPU limit "
            "of the container"
        )
        return Finding("cores", here.host, WARNING, found, fix)
    return Finding("cores", here.host, OK, found)


def shared_memory(here: Here) -> Finding:
    """Ranks of one host exchange data in memory from memfd_create, which no mount limits."""
    try:
        descriptor = here.memfd("horovod-doctor")
        try:
            os.ftruncate(descriptor, 1 << 20)
        finally:
            os.close(descriptor)
    except OSError as error:
        fix = (
            "allow memfd_create in the container's seccomp profile; until then the shared memory lies in a "
            "temporary file"
        )
        text = f"memfd_create fails: {error.strerror}"
        return Finding("shared memory", here.host, WARNING, text, fix)
    try:
        info = os.statvfs(here.root / "dev/shm")
    except OSError as error:
        size = f"no /dev/shm ({error.strerror})"
    else:
        size = f"/dev/shm has {info.f_frsize * info.f_blocks / GIB:.1f} GiB"
    return Finding("shared memory", here.host, OK, f"memfd_create works; {size}, which is not used")


def memory(here: Here) -> Finding:
    """Free memory, of the machine and within the cgroup."""
    lines = dict(line.partition(":")[::2] for line in (here.read("proc/meminfo") or "").split("\n"))
    sizes = {
        name: int(lines[name].split()[0]) << 10
        for name in ("MemTotal", "MemAvailable")
        if name in lines
    }
    if len(sizes) < 2:
        return Finding("memory", here.host, WARNING, "unknown: /proc/meminfo does not say", "")
    total, free = sizes["MemTotal"], sizes["MemAvailable"]
    found = f"{free / GIB:.1f} GiB free of {total / GIB:.1f}"
    limits = [
        int(text)
        for text in here.cgroup_texts("memory.max", "memory", "memory.limit_in_bytes")
        if text.isdigit() and int(text) < total  # more than there is means no limit
    ]
    used = [
        int(text)
        for text in here.cgroup_texts("memory.current", "memory", "memory.usage_in_bytes")
        if text.isdigit()
    ]
    if limits:
        limit = min(limits)
        found += f", the cgroup allows {limit / GIB:.1f} GiB"
        free = min(free, max(0, limit - (used[0] if used else 0)))
    if free < LEAST_MEMORY:
        fix = "end what else runs there, or raise the memory limit of the container"
        return Finding("memory", here.host, WARNING, found, fix)
    return Finding("memory", here.host, OK, found)


def open_files(here: Here) -> Finding:
    """Every rank has a connection to many others."""
    soft, hard = here.limit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)}, at most {_limit(hard)}"
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        fix = (
            "raise it in the start file of the shell there (ulimit -n 65536), in "
            "/etc/security/limits.conf, or with LimitNOFILE= of the service that starts sshd"
        )
        return Finding("open files", here.host, WARNING, found, fix)
    return Finding("open files", here.host, OK, found)


def locked_memory(here: Here) -> Finding:
    """For information: GPU and RDMA libraries lock memory."""
    soft, hard = here.limit(resource.RLIMIT_MEMLOCK)
    return Finding("locked memory", here.host, OK, f"{_bytes(soft)}, at most {_bytes(hard)}")


def processes(here: Here) -> Finding:
    """Threads count as processes for this limit."""
    soft, hard = here.limit(resource.RLIMIT_NPROC)
    found = f"{_limit(soft)}, at most {_limit(hard)}"
    if soft != resource.RLIM_INFINITY and soft < LEAST_PROCESSES:
        fix = "raise it: ulimit -u, or nproc in /etc/security/limits.conf (threads count too)"
        return Finding("processes", here.host, WARNING, found, fix)
    return Finding("processes", here.host, OK, found)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _bytes(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value >> 10} KiB"
