"""What is to be started where: the plan of a job, made before anything runs."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from horovod.common.knobs import value_of
from horovod.runner.hosts import (
    UNKNOWN_SLOTS,
    HostInfo,
    SlotInfo,
    get_host_assignments,
    host_name,
    is_this_machine,
    parse_hosts,
    read_hostfile,
)
from horovod.runner.protocol import Job, Worker
from horovod.runner.slurm_job import hosts_of_allocation, is_in_allocation, over_srun
from horovod.runner.ssh import SshOptions, over_ssh
from horovod.runner.store import Store

KEY_VARIABLE = "_HOROVOD_SECRET_KEY"
MONITOR_VARIABLE = "HOROVOD_MONITOR"
SNAPSHOT_SECONDS = 1.0  # its value: between two snapshots that a rank sends
START_SECONDS = 30
HOSTS_PER_SECOND = 2

# What belongs to the machine or the login where it was set, and would be wrong on another.
_OF_ONE_HOST = re.compile(
    rb".*_VISIBLE_DEVICES|HOSTNAME|OLDPWD|SSH_.*|XDG_(RUNTIME_DIR|SESSION_.*)|DBUS_.*|DISPLAY|WAYLAND_DISPLAY|"
    rb"SLURM_CPU_BIND.*|SLURMD_.*"
)


class Plan(NamedTuple):
    """Everything that the driver needs to know about a job.

    `slots` is empty as long as the number of slots of some host is not known.
    """

    num_proc: int
    hosts: list[HostInfo]
    slots: list[SlotInfo]
    command: list[str]
    variables: dict[str, str]  # on top of the launcher's own environment
    output_directory: str | None = None
    timestamps: bool = False
    verbose: bool = False
    start_timeout: float = START_SECONDS
    ssh: SshOptions = SshOptions()
    interfaces: list[str] | None = None
    uses_srun: bool = False  # instead of ssh
    monitor_seconds: float | None = (
        None  # between two printed tables of --monitor; None: no monitor
    )

    def there(self, environment: Mapping[str, str]) -> Callable[[str, Sequence[str]], list[str]]:
        """Gives, for a host that is not this machine and a command, what runs that command there."""
        if self.uses_srun:
            return lambda node, command: over_srun(node, command, environment)
        return lambda target, command: over_ssh(target, command, self.ssh, environment)

    def targets(self) -> list[str]:
        """The hosts in order, as ssh is given them: those that get ranks, or all if that is not known."""
        if not self.slots:
            return [host.hostname for host in self.hosts]
        return list(dict.fromkeys(slot.hostname for slot in self.slots))

    def remote_targets(self) -> list[str]:
        """Those that are not this machine."""
        return [target for target in self.targets() if not is_local(target)]


def is_local(target: str) -> bool:
    """Whether a host is this machine; with a user before its name it is always reached by ssh."""
    return "@" not in target and is_this_machine(target)


def choose_hosts(
    num_proc: int,
    hosts: str | None,
    hostfile: str | None,
    note: Callable[[str], None] | None = None,
) -> list[HostInfo]:
    """The hosts that the user has given, or those of SLURM's job, or this machine.

    ValueError for what makes no sense.
    `note` is told what was understood otherwise than it may have been meant.
    """
    if hosts is not None and hostfile is not None:
        raise ValueError("give either hosts or a hostfile, not both")
    if hosts is not None:
        return parse_hosts(hosts, note)
    if hostfile is not None:
        return read_hostfile(hostfile, note)
    if is_in_allocation(os.environ):
        return hosts_of_allocation(os.environ, num_proc)
    return [HostInfo("localhost", num_proc)]


def assign(num_proc: int, hosts: list[HostInfo]) -> list[SlotInfo]:
    """Where the ranks go; empty if the slots of a host must be asked for first.

    Raises:
        ValueError: there are fewer slots than processes.
    """
    if any(host.slots == UNKNOWN_SLOTS for host in hosts):
        return []
    return get_host_assignments(hosts, num_proc, num_proc)


def stays_here(name: bytes) -> bool:
    """Whether a variable of the launcher's environment would be wrong on another host."""
    return _OF_ONE_HOST.fullmatch(name) is not None


def settle_start_timeout(
    hosts: int, variables: dict[str, str], environment: Mapping[str, str]
) -> float:
    """Seconds for all of a job to come up. Where nobody has set them, `variables` gets a default.

    A large job takes longer, so that grows with the number of hosts.
    """
    name = "HOROVOD_START_TIMEOUT"
    if hosts > 1 and not (variables.get(name) or environment.get(name)):
        variables[name] = str(START_SECONDS + (hosts - 1) // HOSTS_PER_SECOND)
    return float(value_of(name, {**environment, **variables}))


def job_of_host(
    plan: Plan,
    target: str,
    store: Store,
    addresses: list[str],
    environment: Mapping[bytes, bytes],
) -> Job:
    """The part of one host, as its agent gets it; `addresses` are the store's."""
    common = {
        **{name.encode(): os.fsencode(value) for name, value in plan.variables.items()},
        b"HOROVOD_HOSTNAME": os.fsencode(host_name(target)),
        b"HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.port).encode(),
        b"HOROVOD_CONTROLLER": b"gloo",
        b"PYTHONUNBUFFERED": b"1",
        KEY_VARIABLE.encode(): base64.b64encode(store.key),
    }
    if plan.monitor_seconds is not None:
        common[MONITOR_VARIABLE.encode()] = str(SNAPSHOT_SECONDS).encode()
    local = is_local(target)
    workers = [Worker(slot.rank, _identity(slot)) for slot in plan.slots if slot.hostname == target]
    here = sum(is_local(slot.hostname) for slot in plan.slots) if local else len(workers)
    passed_on = {
        name: value
        for name, value in environment.items()
        # An outer job's monitor is not told of this one.
        if (local or not stays_here(name)) and name != MONITOR_VARIABLE.encode()
    }
    return Job(
        host=host_name(target),
        command=[os.fsencode(part) for part in plan.command],
        cwd=os.getcwdb(),
        environment={**passed_on, **common},
        workers=workers,
        ranks_on_machine=here,
        addresses=addresses,
        port=store.port,
        key=store.key,
    )


def _identity(slot: SlotInfo) -> dict[bytes, bytes]:
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    return {f"HOROVOD_{name.upper()}".encode(): str(getattr(slot, name)).encode() for name in names}
