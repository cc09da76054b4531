"""The hosts of a job of IBM Spectrum LSF, from the variables that LSF sets for it.

LSB_JOBID: there is a job. LSB_DJOB_HOSTFILE: a file with a line for each slot; LSB_MCPU_HOSTS: the same
in one line, `host1 4 host2 4`. CSM_ALLOCATION_ID: the compute hosts belong to IBM's Cluster System
Management, and the job's script runs on a launch host, which then stands first with one slot.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from horovod.runner.hosts import HostInfo, format_hosts, is_this_machine

JOB_VARIABLE = "LSB_JOBID"
HOSTFILE_VARIABLE, LIST_VARIABLE = "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS"
CSM_VARIABLE = "CSM_ALLOCATION_ID"
CSM_QUERY = "csm_node_attributes_query"
CSM_SECONDS = 30.0
THREADS_OF_A_CORE = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list"

# Scripts look for this text, two spaces included.
NO_LSF_TEXT = (
    "Horovod did not detect an LSF job.  The jsrun launcher can only be used in that environment. "
    "Please, pick a different launcher for other environments."
)


class Allocation(NamedTuple):
    """The compute hosts: how many processes each gets if nothing else is said, and its cores."""

    hosts: list[HostInfo]
    cores: dict[str, int]


def is_in_job(env: Mapping[str, str]) -> bool:
    """Whether LSF has started us."""
    return bool(env.get(JOB_VARIABLE))


def allocation(env: Mapping[str, str]) -> Allocation:
    """The hosts of the job; a slot is a GPU if it is known how many there are, otherwise a core.

    Raises:
        ValueError: this is no job of LSF, or it doesn't say which hosts it has.
    """
    if not is_in_job(env):
        raise ValueError(NO_LSF_TEXT)
    cores = _cores(env)
    names = list(cores)
    if env.get(CSM_VARIABLE) and len(names) > 1 and cores[names[0]] == 1:
        del cores[names[0]]
    gpus = _gpus(env, list(cores))
    return Allocation([HostInfo(name, gpus or slots) for name, slots in cores.items()], cores)


def fill_in_from_job(args: argparse.Namespace, env: Mapping[str, str]) -> None:
    """In a job of LSF: its hosts where none are given, and a process for each slot without -np.

    Raises:
        ValueError: LSF does not say which hosts there are, and that is needed.
    """
    if not is_in_job(env) or args.hosts is not None or args.hostfile is not None:
        return
    try:
        hosts = allocation(env).hosts
    except ValueError:
        if args.num_proc is None or args.use_jsrun:
            raise
        return
    args.hosts = format_hosts(hosts)
    if args.num_proc is None:
        args.num_proc = sum(host.slots for host in hosts)


def _cores(env: Mapping[str, str]) -> dict[str, int]:
    path = env.get(HOSTFILE_VARIABLE)
    if path:
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise ValueError(f"{HOSTFILE_VARIABLE}={path}: {error.strerror}") from None
        found = dict(Counter(text.split()))
        if found:
            return found
    words = env.get(LIST_VARIABLE, "").split()
    numbers = words[1::2]
    if not words or len(words) % 2 or not all(number.isdecimal() for number in numbers):
        raise ValueError(
            f"{JOB_VARIABLE}={env[JOB_VARIABLE]} says that this is an LSF job, but not on which hosts: "
            f"expected a file {HOSTFILE_VARIABLE} with host names or {LIST_VARIABLE}='host1 4 host2 4', "
            f"found {HOSTFILE_VARIABLE}='{path or ''}' and {LIST_VARIABLE}='{' '.join(words)}'. Give -np "
            "and -H"
        )
    summed: Counter[str] = Counter()
    for name, number in zip(words[::2], numbers, strict=True):
        summed[name] += int(number)
    return dict(summed)


def _gpus(env: Mapping[str, str], hosts: list[str]) -> int:
    """GPUs of each host, 0 if that is not known. Hosts of a job are taken to be alike."""
    if env.get(CSM_VARIABLE):
        return _gpus_of_csm(hosts[0], env)
    # LSF sets it on the hosts that it gave the job, for the GPUs that it gave there.
    devices = env.get("CUDA_VISIBLE_DEVICES", "")
    if devices and any(is_this_machine(host) for host in hosts):
        return len([device for device in devices.split(",") if device.strip() not in ("", "-1")])
    return 0


def _gpus_of_csm(host: str, env: Mapping[str, str]) -> int:
    program = shutil.which(CSM_QUERY, path=env.get("PATH", os.defpath))
    if program is None:
        return 0
    try:
        done = subprocess.run(
            [program, "-n", host], capture_output=True, text=True, timeout=CSM_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r"discovered_gpus:\s*(\d+)", done.stdout)
    return int(found[1]) if found else 0


def threads_per_core(path: str = THREADS_OF_A_CORE) -> int:
    """Hardware threads of a core of this machine, to which the compute hosts are taken to be alike."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return 1
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
