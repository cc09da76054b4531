"""What is to be started where: the plan of a job, made before anything runs."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import NamedTuple

from horovod.runner.hosts import (
    HostInfo,
    SlotInfo,
    get_host_assignments,
    is_this_machine,
    parse_hosts,
    read_hostfile,
)
from horovod.runner.protocol import Job, Worker
from horovod.runner.store import Store

KEY_VARIABLE = "_HOROVOD_SECRET_KEY"


class Plan(NamedTuple):
    """Everything that the driver needs to know about a job."""

    slots: list[SlotInfo]
    command: list[str]
    variables: dict[str, str]  # on top of the launcher's own environment
    output_directory: str | None = None
    timestamps: bool = False
    verbose: bool = False
    start_timeout: float = 30.0

    def hosts(self) -> list[str]:
        """The hosts in order."""
        return list(dict.fromkeys(slot.hostname for slot in self.slots))


def choose_hosts(num_proc: int, hosts: str | None, hostfile: str | None) -> list[SlotInfo]:
    """Where the ranks go. ValueError for what makes no sense, NotImplementedError for other hosts."""
    if hosts is not None and hostfile is not None:
        raise ValueError("give either hosts or a hostfile, not both")
    if hosts is not None:
        found = parse_hosts(hosts)
    elif hostfile is not None:
        found = read_hostfile(hostfile)
    else:
        found = [HostInfo("localhost", num_proc)]
    slots = get_host_assignments(found, num_proc, num_proc)
    for host in dict.fromkeys(slot.hostname for slot in slots):
        if not is_this_machine(host):
            raise NotImplementedError(
                f"host '{host}' is not this machine: launching on other hosts over SSH is not "
                "available yet; use localhost, 127.0.0.1, ::1 or this machine's own name"
            )
    return slots


def job_of_host(plan: Plan, host: str, store: Store, environment: Mapping[bytes, bytes]) -> Job:
    """The part of one host, as its agent gets it."""
    common = {
        **{name.encode(): os.fsencode(value) for name, value in plan.variables.items()},
        b"HOROVOD_HOSTNAME": os.fsencode(host),
        b"HOROVOD_GLOO_RENDEZVOUS_ADDR": store.address.encode(),
        b"HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.port).encode(),
        b"HOROVOD_CONTROLLER": b"gloo",
        b"PYTHONUNBUFFERED": b"1",
        KEY_VARIABLE.encode(): base64.b64encode(store.key),
    }
    workers = [Worker(slot.rank, _identity(slot)) for slot in plan.slots if slot.hostname == host]
    return Job(
        host=host,
        command=[os.fsencode(part) for part in plan.command],
        cwd=os.getcwdb(),
        environment={**environment, **common},
        workers=workers,
        ranks_on_machine=len(plan.slots),
    )


def _identity(slot: SlotInfo) -> dict[bytes, bytes]:
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    return {f"HOROVOD_{name.upper()}".encode(): str(getattr(slot, name)).encode() for name in names}
