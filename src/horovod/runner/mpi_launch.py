"""horovodrun --mpi: the mpirun that is installed starts the processes, which then meet over MPI.

The command line holds names of variables and never their values, so that no secret stands on it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from horovod.runner.common.util.env import is_exportable
from horovod.runner.dry_run import shown_command
from horovod.runner.hosts import UNKNOWN_SLOTS
from horovod.runner.mpi_probe import Flavour, Mpirun, find_mpirun
from horovod.runner.plan import KEY_VARIABLE, Plan, stays_here

# From this many hosts on Open MPI starts its agents on all of them by itself and at the same time.
LARGE_CLUSTER = 64
END_SECONDS = 10.0
MACHINEFILE = "<machinefile>"

# Who a process is says mpirun; what another launcher has said of us would come before it.
IDENTITY_VARIABLES = (
    *(f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    *("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", KEY_VARIABLE),
)
# Open MPI passes on its own settings by itself.
_OF_OPEN_MPI = ("OMPI_", "PMIX_", "PRTE_")
# MPICH's Hydra has no flag for the options of ssh.
_MPICH_SSH_VARIABLE = "HYDRA_LAUNCHER_EXTRA_ARGS"

NO_MPI_TEXT = """\
horovod does not find an installed MPI.

What was seen: {seen}

Choose one of:
1. Install Open MPI, MPICH, Intel MPI or IBM Spectrum MPI, so that its mpirun is in PATH.
2. Start the script with your MPI's own launcher, as in: mpirun -np 2 python train.py (docs/mpi.md).
3. Use the built-in controller, which needs no MPI: horovodrun --gloo."""


class MpiOptions(NamedTuple):
    """What the user has asked of mpirun or jsrun."""

    extra: tuple[str, ...] = ()
    tcp: bool = False
    binding: tuple[str, ...] | None = None

    @classmethod
    def from_texts(cls, extra: str | None, tcp: bool, binding: str | None) -> MpiOptions:
        """Splits the texts of --mpi-args and --binding-args as a shell does; raises ValueError."""
        return cls(
            tuple(_words("--mpi-args", extra or "")),
            tcp,
            None if binding is None else tuple(_words("--binding-args", binding)),
        )


class Start(NamedTuple):
    """A launcher's command line and its environment, which the workers get too."""

    command: list[
        str
    ]  # MACHINEFILE in it stands for the path of a file with the text of `machinefile`
    environment: dict[str, str]
    machinefile: str = ""


def _words(flag: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(
            f"{flag}: expected words as for a shell, found '{text}': {error}"
        ) from None


def plan_mpirun(
    plan: Plan, options: MpiOptions, env: Mapping[str, str], more: Mapping[str, str] | None = None
) -> Start:
    """What `horovodrun --mpi` executes; starts nothing but `mpirun --version`.

    Args:
        plan: of the job.
        options: for mpirun.
        env: of the launcher.
        more: variables for the workers on top; those of `plan` are contained.

    Raises:
        ValueError: no MPI was found, or it can't do what was asked for.
    """
    found = find_mpirun(env)
    if found.flavour in (Flavour.UNKNOWN, Flavour.MISSING):
        raise ValueError(NO_MPI_TEXT.format(seen="; ".join(found.seen)))
    environment = worker_environment(plan, options, env)
    environment |= more or {}
    if found.flavour.is_hydra:
        return _hydra(found, plan, options, environment)
    names = [*exportable(environment), *(more or {})]
    command = _open_mpi(found, plan, options, sorted(set(names)))
    return Start(command, environment)


def worker_environment(plan: Plan, options: MpiOptions, env: Mapping[str, str]) -> dict[str, str]:
    """The launcher's environment as its workers get it: `env` and what the flags stand for."""
    environment = {name: value for name, value in env.items() if name not in IDENTITY_VARIABLES}
    environment |= plan.variables
    environment["PYTHONUNBUFFERED"] = "1"
    if plan.interfaces:
        environment["NCCL_SOCKET_IFNAME"] = ",".join(plan.interfaces)
    if options.tcp:
        environment["NCCL_IB_DISABLE"] = "1"
    return environment


def exportable(environment: Mapping[str, str]) -> list[str]:
    """Names of the variables that make sense on other hosts, sorted."""
    return sorted(
        name
        for name in environment
        if is_exportable(name)
        and not stays_here(os.fsencode(name))
        and not name.startswith(_OF_OPEN_MPI)
    )


def _open_mpi(found: Mpirun, plan: Plan, options: MpiOptions, names: list[str]) -> list[str]:
    """The command line of Open MPI and Spectrum MPI.

    Two dashes throughout: Open MPI 5 takes the value of `-bind-to` for the program.
    """
    hosts = ",".join(f"{name}:{slots}" for name, slots in _hosts(plan))
    words = [found.path, "--allow-run-as-root", "--tag-output"]
    words += ["-np", str(plan.num_proc), "-H", hosts]
    binding: tuple[str, ...]
    if found.flavour is Flavour.SPECTRUM_MPI:
        binding = ("--bind-to", "socket", "--map-by", "socket", "--rank-by", "core")
        flags = ["-tcp"] if options.tcp else []
    else:
        binding = ("--bind-to", "none", "--map-by", "slot")
        flags = ["--mca", "pml", "ob1", "--mca", "btl", "^openib"]
    words += binding if options.binding is None else options.binding
    words += flags
    ssh = _ssh_words(plan)
    if ssh:
        words += ["--mca", "plm_rsh_args", " ".join(ssh)]
    if len(plan.hosts) >= LARGE_CLUSTER:
        words += ["--mca", "plm_rsh_no_tree_spawn", "true"]
        words += ["--mca", "plm_rsh_num_concurrent", str(len(plan.hosts))]
    if plan.interfaces:
        words += ["--mca", "btl_tcp_if_include", ",".join(plan.interfaces)]
    if plan.output_directory is not None:
        words += ["--output-filename", os.path.abspath(plan.output_directory)]
    if plan.timestamps:
        words.append("--timestamp-output")
    for name in names:
        words += ["-x", name]
    return [*words, *options.extra, *plan.command]


def _hydra(found: Mpirun, plan: Plan, options: MpiOptions, environment: dict[str, str]) -> Start:
    """The command line of MPICH and Intel MPI, whose workers get the whole environment of mpirun."""
    if plan.timestamps:
        raise ValueError(
            f"{found.flavour.value} cannot put the time before its output: leave "
            "--prefix-output-with-timestamp out, or use horovodrun without --mpi"
        )
    if plan.interfaces and len(plan.interfaces) > 1:
        raise ValueError(
            "Intel MPI and MPICH do not support multiple interfaces. Give --network-interfaces one of "
            f"{', '.join(plan.interfaces)}"
        )
    hosts, machinefile = _hydra_hosts(plan)
    words = [found.path, "-l", "-np", str(plan.num_proc), *hosts]
    ssh = " ".join(_ssh_words(plan))
    if ssh and found.flavour is Flavour.INTEL_MPI:
        words += ["-bootstrap=ssh", "-bootstrap-exec-args", ssh]
    elif ssh:
        words.append("-bootstrap=ssh")
        before = environment.get(_MPICH_SSH_VARIABLE, "")
        environment = {**environment, _MPICH_SSH_VARIABLE: f"{before} {ssh}".strip()}
    if plan.interfaces:
        words += ["-iface", plan.interfaces[0]]
    words += options.binding or ()
    if plan.output_directory is not None:
        pattern = os.path.join(os.path.abspath(plan.output_directory), "rank.%r")
        words += ["-outfile-pattern", os.path.join(pattern, "stdout")]
        words += ["-errfile-pattern", os.path.join(pattern, "stderr")]
    return Start([*words, *options.extra, *plan.command], environment, machinefile)


def _hydra_hosts(plan: Plan) -> tuple[list[str], str]:
    """The flags, and the machine file if the hosts differ in their slots."""
    hosts = _hosts(plan)
    each = {slots for _, slots in hosts}
    if len(each) == 1:
        return ["-ppn", str(each.pop()), "-hosts", ",".join(name for name, _ in hosts)], ""
    return ["-machinefile", MACHINEFILE], "".join(f"{name}:{slots}\n" for name, slots in hosts)


def _hosts(plan: Plan) -> list[tuple[str, int]]:
    """Hosts and slots, if their names can stand in a list of mpirun's."""
    for host in plan.hosts:
        if "@" in host.hostname:
            raise ValueError(
                f"host {host.hostname}: mpirun takes no user before a host; put 'User' for it into "
                "~/.ssh/config"
            )
        if ":" in host.hostname:
            raise ValueError(
                f"host {host.hostname}: mpirun takes no IPv6 address in its list of hosts; give a name"
            )
        if host.slots == UNKNOWN_SLOTS:
            raise ValueError(
                f"the number of slots is not known of: {host.hostname}; with --mpi it must be given, as "
                f"in -H {host.hostname}:2"
            )
    return [(host.hostname, host.slots) for host in plan.hosts]


def _ssh_words(plan: Plan) -> list[str]:
    words = []
    if plan.ssh.port is not None:
        words += ["-p", str(plan.ssh.port)]
    key = plan.ssh.identity_file
    if key is not None:
        path = os.path.abspath(key)
        if any(character.isspace() or character in "\"'" for character in path):
            raise ValueError(
                f"--ssh-identity-file {key}: mpirun takes no path with blanks or quotes; name the key in "
                "~/.ssh/config instead"
            )
        words += ["-i", path]
    if plan.ssh.accept_new_host_keys:
        words += ["-o", "StrictHostKeyChecking=accept-new"]
    return words


def make_output_folders(plan: Plan) -> None:
    """Hydra writes into the folders of --output-filename, and does not make them."""
    if plan.output_directory is not None:
        for rank in range(plan.num_proc):
            os.makedirs(os.path.join(plan.output_directory, f"rank.{rank}"), exist_ok=True)


def replace_process(plan: Plan, start: Start) -> NoReturn:
    """This process becomes mpirun, whose exit code so is that of horovodrun."""
    command, _ = _prepare(plan, start)
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores it, and what is ignored stays so in the program that follows.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve(command[0], command, start.environment)


def run_child(plan: Plan, start: Start) -> int:
    """Runs the launcher to its end; returns its exit code, 128 + n if signal n ended it."""
    command, descriptors = _prepare(plan, start)
    with subprocess.Popen(command, env=start.environment, pass_fds=descriptors) as child:
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            code = child.wait()
        except BaseException:
            # A terminal's Ctrl-C has reached it, too; it ends its workers before itself.
            child.terminate()
            try:
                child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
    return code if code >= 0 else 128 - code


def _prepare(plan: Plan, start: Start) -> tuple[list[str], list[int]]:
    """The command to execute, and the descriptors that it must inherit."""
    if plan.verbose:
        print(f"horovodrun: {shown_command(start.command)}", file=sys.stderr, flush=True)
    if "-outfile-pattern" in start.command:
        make_output_folders(plan)
    if not start.machinefile:
        return start.command, []
    # In memory: nobody would be left to remove a file when mpirun has taken our place.
    descriptor = os.memfd_create("machinefile", 0)
    os.write(descriptor, start.machinefile.encode())
    path = f"/proc/self/fd/{descriptor}"
    place = start.command.index(MACHINEFILE)
    return [*start.command[:place], path, *start.command[place + 1 :]], [descriptor]


def dry_run_text(start: Start) -> str:
    """What --dry-run prints."""
    lines = ["Nothing is started. This is what horovodrun would do.", "", "Command:"]
    lines.append(f"    {shown_command(start.command)}")
    if start.machinefile:
        entries = (f"    {line}" for line in start.machinefile.splitlines())
        lines += ["", f"Machine file, which stands for {MACHINEFILE}:", *entries]
    return "\n".join(lines)
