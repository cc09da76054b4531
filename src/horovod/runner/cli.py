"""The command line of horovodrun."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import Any

from horovod.runner.config_file import read_config, set_args_from_config
from horovod.runner.knob_options import (
    DIAGNOSIS,
    JOB,
    MPI,
    TUNING,
    add_knob_flags,
    validate_config_args,
)
from horovod.runner.lsf import NO_LSF_TEXT, fill_in_from_job, is_in_job
from horovod.runner.slurm_job import is_in_allocation, processes_of_allocation

# Flags of Horovod 0.28 whose feature does not exist yet: names, number of values, feature.
LATER_FLAGS: tuple[tuple[tuple[str, ...], int | None, str], ...] = (
    (("--num-nccl-streams",), None, "the NCCL backend"),
    (("--hierarchical-allreduce",), 0, "the choice of algorithm"),
    (("--hierarchical-allgather",), 0, "the choice of algorithm"),
    (("--torus-allreduce",), 0, "the choice of algorithm"),
    (("--min-np", "--min-num-proc"), None, "elastic training"),
    (("--max-np", "--max-num-proc"), None, "elastic training"),
    (("--slots-per-host",), None, "elastic training"),
    (("--elastic-timeout",), None, "elastic training"),
    (("--reset-limit",), None, "elastic training"),
    (("--blacklist-cooldown-range",), 2, "elastic training"),
    (("--host-discovery-script",), None, "elastic training"),
)
# They ask for what is so anyway.
HARMLESS_FLAGS = (
    "--disable-cache",
    "--no-hierarchical-allreduce",
    "--no-hierarchical-allgather",
    "--no-torus-allreduce",
)

# Former name, name, value of log_without_timestamp.
RENAMED_FLAGS = (
    ("--log-hide-timestamp", "--log-without-timestamp", True),
    ("--no-log-hide-timestamp", "--log-with-timestamp", False),
)
SHELLS = ("bash", "zsh", "fish")
MONITOR_SECONDS = 10.0  # between two tables of --monitor in a log
EPILOG = """\
examples:
  4 processes on this machine:
    horovodrun -np 4 python train.py --epochs 10
  2 on each of two hosts:
    horovodrun -np 4 -H node1:2,node2:2 python train.py
  hosts of a file, with lines such as 'node1 slots=8':
    horovodrun -np 16 -hostfile hosts.txt python train.py
  another user, port and key for ssh:
    horovodrun -np 2 -H me@node1:2 -p 2222 -i ~/.ssh/job python train.py
  what would be started where, without starting it:
    horovodrun -np 4 -H node1:2,node2:2 --dry-run python train.py
  the output of each rank in a file of its own, and a time before each line:
    horovodrun -np 4 --output-filename logs -prefix-timestamp python train.py
  a file for --config-file, by question and answer:
    horovodrun config horovod.yaml
  a timeline of every rank, and a page that explains it:
    horovodrun -np 4 --timeline-filename t.json --timeline-all-ranks python t.py
    horovodrun timeline report t.json t.rank*.json
  completion in this shell:
    eval "$(horovodrun --print-completion bash)"

documentation: docs/launcher.md, docs/hosts.md and docs/knobs.md of the source
"""


class _Later(argparse.Action):
    """Refuses a flag whose feature does not exist yet."""

    def __init__(self, *args: Any, feature: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._feature = feature

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        _values: Any,
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string}: {self._feature} is not available yet")


class _Interfaces(argparse.Action):
    """Adds names of network interfaces to a list, each once."""

    def __init__(self, *args: Any, one_each: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._one_each = one_each

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        names = [name.strip() for name in str(values).split(",")]
        if not all(names) or any(character.isspace() for name in names for character in name):
            parser.error(
                f"{option_string}: expected names of network interfaces such as eth0,eth1, "
                f"found '{values}'"
            )
        if self._one_each and len(names) > 1:
            warnings.warn(
                f"{option_string} takes one name and may be repeated; use --network-interfaces "
                f"{','.join(names)} for a list",
                DeprecationWarning,
                stacklevel=2,
            )
        before = getattr(namespace, self.dest, None) or []
        setattr(namespace, self.dest, list(dict.fromkeys([*before, *names])))


class _Renamed(argparse.Action):
    """A flag's former name: it does what the new one does, and says so."""

    def __init__(self, *args: Any, now: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._now = now

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        _values: Any,
        option_string: str | None = None,
    ) -> None:
        warnings.warn(
            f"{option_string} is deprecated, use {self._now}", DeprecationWarning, stacklevel=2
        )
        setattr(namespace, self.dest, self.const)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"expected a port from 1 to 65535, found '{text}'")
    return int(text)


def _readable_file(text: str) -> str:
    path = os.path.expanduser(text)  # the shell leaves the ~ of --ssh-identity-file=~/key alone
    if not os.path.isfile(path):
        found = "a directory" if os.path.isdir(path) else "no such file"
        raise argparse.ArgumentTypeError(f"expected a private key, found {found}: '{path}'")
    if not os.access(path, os.R_OK):
        raise argparse.ArgumentTypeError(f"'{path}' cannot be read by this user; check its mode")
    return path


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads `argv` (sys.argv) and the configuration file it names; leaves with a message if wrong.

    A knob that neither of them gives is None.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command[:1] == ["--"]:
        args.command = args.command[1:]
    try:
        if args.config_file:
            set_args_from_config(args, read_config(args.config_file))
            if args.use_gloo or args.use_jsrun:
                args.use_mpi = None  # the file's; flags win
        validate_config_args(args)
    except OSError as error:
        parser.error(f"--config-file {args.config_file}: {error.strerror}")
    except ValueError as error:
        parser.error(str(error))
    if not (args.check_build or args.check_gpu or args.version or args.print_completion):
        _check_job(parser, args)
    return args


def _check_job(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for name in ("mpi_args", "binding_args"):
        if getattr(args, name) is not None and not (args.use_mpi or args.use_jsrun):
            parser.error(f"--{name.replace('_', '-')} is for mpirun: give --mpi, too")
    if args.monitor and (args.use_mpi or args.use_jsrun):
        other = "--mpi" if args.use_mpi else "--jsrun"
        parser.error(
            f"--monitor needs horovodrun's own launcher, to which the ranks report; with {other} they "
            "don't. Leave one of the two out, or read the ranks' metrics with --metrics-port"
        )
    if args.monitor_interval is not None and not args.monitor:
        parser.error("--monitor-interval is for the table of --monitor: give --monitor, too")
    if args.use_jsrun and not is_in_job(os.environ):
        parser.error(NO_LSF_TEXT)
    try:
        fill_in_from_job(args, os.environ)
    except ValueError as error:
        parser.error(str(error))
    if args.num_proc is None:
        args.num_proc = processes_of_allocation(os.environ)
    if args.uses_srun and not is_in_allocation(os.environ):
        parser.error(
            "--srun: this is no job of SLURM (SLURM_JOB_ID, SLURM_JOB_NODELIST are not set)"
        )
    if args.num_proc is None:
        parser.error("-np is missing: say how many processes to start, as in -np 2")
    if args.num_proc < 1:
        parser.error(f"-np {args.num_proc}: at least one process must be started")
    if not args.command:
        parser.error(f"no command given, as in: horovodrun -np {args.num_proc} python train.py")


def build_parser() -> argparse.ArgumentParser:
    """The parser of horovodrun's command line, from which help and shell completion are made."""
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np N [options] command ...\n"
        "       horovodrun doctor [-H HOSTS]\n       horovodrun config [FILE]\n"
        "       horovodrun scaling --np 1,2,4 command ...\n"
        "       horovodrun predict TIMELINE --hosts N ...\n"
        "       horovodrun timeline merge|report FILE...\n"
        "       horovodrun flight-recorder DIR",
        description="Starts N processes of a training script and connects them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    job = parser.add_argument_group(JOB)
    _add_job(job)
    add_hosts(parser.add_argument_group("Hosts"))
    ssh = parser.add_argument_group("SSH, SLURM")
    add_ssh(ssh)
    ssh.add_argument(
        "--srun",
        dest="uses_srun",
        action="store_true",
        help="In a job of SLURM: reach the other nodes with srun instead of ssh.",
    )
    _add_output(parser.add_argument_group("Output"))
    mpi = parser.add_argument_group(MPI)
    _add_mpi(mpi)
    tuning = parser.add_argument_group(TUNING)
    diagnosis = parser.add_argument_group(DIAGNOSIS)
    add_knob_flags({JOB: job, MPI: mpi, TUNING: tuning, DIAGNOSIS: diagnosis})
    _add_diagnosis(diagnosis)
    _add_information(parser.add_argument_group("Information"))
    later = parser.add_argument_group("Not available yet")
    for names, count, feature in LATER_FLAGS:
        later.add_argument(
            *names, action=_Later, nargs=count, feature=feature, help=argparse.SUPPRESS
        )
    for name, now, value in RENAMED_FLAGS:
        parser.add_argument(
            name,
            action=_Renamed,
            nargs=0,
            dest="log_without_timestamp",
            const=value,
            now=now,
            help=argparse.SUPPRESS,
        )
    for name in HARMLESS_FLAGS:
        later.add_argument(name, action="store_true", default=None, help=argparse.SUPPRESS)
    return parser


def _add_job(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("command", nargs=argparse.REMAINDER, help="What to run, with its arguments.")
    add("-np", "--num-proc", type=int, metavar="N", help="Number of processes to start.")
    add(
        "--config-file",
        metavar="FILE",
        help="YAML file with values for flags that are not given; 'horovodrun config' writes one.",
    )
    either = group.add_mutually_exclusive_group()
    for flag, text in (
        ("--gloo", "The built-in launcher, which is the default."),
        ("--mpi", "Start the processes with the mpirun that is installed (docs/mpi.md)."),
        ("--jsrun", "In a job of LSF: start the processes with jsrun (docs/lsf.md)."),
    ):
        either.add_argument(
            flag, dest=f"use_{flag[2:]}", action="store_true", default=None, help=text
        )


def add_hosts(group: argparse._ArgumentGroup) -> None:
    """The flags that say which hosts take part, and by which interfaces."""
    either = group.add_mutually_exclusive_group()
    either.add_argument(
        "-H",
        "--hosts",
        metavar="LIST",
        help="Hosts and their slots: host1:2,host2:4. By default this machine.",
    )
    either.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="File with lines 'host slots=n'."
    )
    group.add_argument(
        "--network-interfaces",
        dest="nics",
        action=_Interfaces,
        metavar="LIST",
        help="Use only these network interfaces, as in eth0,eth1. Never needed: by default "
        "addresses are chosen by the route.",
    )
    group.add_argument(
        "--network-interface",
        dest="nics",
        action=_Interfaces,
        one_each=True,
        metavar="NAME",
        help="The same, one name; may be repeated.",
    )


def add_ssh(group: argparse._ArgumentGroup) -> None:
    """The flags that say how other hosts are reached."""
    group.add_argument(
        "-p", "--ssh-port", type=_port, metavar="PORT", help="Port of ssh on the other hosts."
    )
    group.add_argument(
        "-i",
        "--ssh-identity-file",
        type=_readable_file,
        metavar="FILE",
        help="Private key for ssh.",
    )
    group.add_argument(
        "--ssh-accept-new-host-keys",
        action="store_true",
        help="Trust a host whose key is not known yet, and remember the key. By default your "
        "configuration of ssh decides.",
    )


def _add_mpi(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mpi-args",
        metavar="ARGS",
        help='More arguments for mpirun or jsrun; the = is needed, as in --mpi-args="--quiet".',
    )
    group.add_argument(
        "--binding-args",
        metavar="ARGS",
        help="Arguments for mpirun instead of those by which processes are bound to cores.",
    )
    group.add_argument(
        "--tcp",
        action="store_true",
        help="NCCL and Spectrum MPI use TCP only (NCCL_IB_DISABLE=1).",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--output-filename",
        metavar="DIR",
        help="Also write the output of rank R to DIR/rank.R/stdout and stderr.",
    )
    group.add_argument(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="Put the time before every line of output.",
    )
    group.add_argument("--verbose", action="store_true", help="Say what is being done.")


def _add_diagnosis(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--monitor",
        action="store_true",
        help="Show a table of the ranks (steps, bytes, waiting, memory) below their output.",
    )
    group.add_argument(
        "--monitor-interval",
        type=_seconds,
        metavar="S",
        help=f"Seconds between two tables where there is no terminal (default {MONITOR_SECONDS:g}).",
    )
    group.add_argument(
        "--dry-run",
        action="store_true",
        help="Print hosts, ranks, environment and commands, and start nothing.",
    )
    group.add_argument(
        "-cb", "--check-build", action="store_true", help="Print what works here and leave."
    )
    group.add_argument(
        "--check-gpu",
        action="store_true",
        help="Print the GPUs, driver and NCCL found here, or why there are none, and leave with 0 "
        "if a GPU is usable, else 1.",
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 86400:  # nan is not, either
        raise argparse.ArgumentTypeError(f"expected seconds from 0.1 to 86400, found '{text}'")
    return value


def _add_information(group: argparse._ArgumentGroup) -> None:
    group.add_argument("-h", "--help", action="help", help="Print this text and leave.")
    group.add_argument("-v", "--version", action="store_true", help="Print the version and leave.")
    group.add_argument(
        "--print-completion",
        choices=SHELLS,
        metavar="SHELL",
        help=f"Print the completion of this command for {', '.join(SHELLS[:-1])} or {SHELLS[-1]} and leave.",
    )


def print_error(text: str) -> None:
    """An error of the launcher itself."""
    print(f"horovodrun: error: {text}", file=sys.stderr)
