"""The command line of horovodrun."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any

from horovod.runner.config_file import read_config, set_args_from_config
from horovod.runner.knob_options import add_knob_flags, validate_config_args

# Flags of Horovod 0.28 whose feature does not exist yet: names, number of values, feature.
LATER_FLAGS: tuple[tuple[tuple[str, ...], int | None, str], ...] = (
    (("-p", "--ssh-port"), None, "launching on other hosts over SSH"),
    (("-i", "--ssh-identity-file"), None, "launching on other hosts over SSH"),
    (("--network-interfaces",), None, "choosing network interfaces by name"),
    (("--network-interface",), None, "choosing network interfaces by name"),
    (("--mpi",), 0, "launching with mpirun"),
    (("--jsrun",), 0, "launching with jsrun"),
    (("--mpi-args",), None, "launching with mpirun"),
    (("--tcp",), 0, "launching with mpirun"),
    (("--binding-args",), None, "launching with mpirun"),
    (("--mpi-threads-disable",), 0, "the MPI backend"),
    (("--num-nccl-streams",), None, "the NCCL backend"),
    (("--hierarchical-allreduce",), 0, "the choice of algorithm"),
    (("--hierarchical-allgather",), 0, "the choice of algorithm"),
    (("--torus-allreduce",), 0, "the choice of algorithm"),
    (("--autotune",), 0, "autotune"),
    (("--autotune-log-file",), None, "autotune"),
    (("--autotune-warmup-samples",), None, "autotune"),
    (("--autotune-steps-per-sample",), None, "autotune"),
    (("--autotune-bayes-opt-max-samples",), None, "autotune"),
    (("--autotune-gaussian-process-noise",), None, "autotune"),
    (("--timeline-filename",), None, "the timeline"),
    (("--timeline-mark-cycles",), 0, "the timeline"),
    (("--min-np", "--min-num-proc"), None, "elastic training"),
    (("--max-np", "--max-num-proc"), None, "elastic training"),
    (("--slots-per-host",), None, "elastic training"),
    (("--elastic-timeout",), None, "elastic training"),
    (("--reset-limit",), None, "elastic training"),
    (("--blacklist-cooldown-range",), 2, "elastic training"),
    (("--host-discovery-script",), None, "elastic training"),
)
# Scripts look for these texts, two spaces included.
NO_LSF_TEXT = (
    "Horovod did not detect an LSF job.  The jsrun launcher can only be used in that environment. "
    "Please, pick a different launcher for other environments."
)
NO_MPI_TEXT = "MPI support has not been built."
# They ask for what is so anyway.
HARMLESS_FLAGS = (
    "--disable-cache",
    "--no-autotune",
    "--no-hierarchical-allreduce",
    "--no-hierarchical-allgather",
    "--no-torus-allreduce",
    "--no-timeline-mark-cycles",
    "--no-mpi-threads-disable",
)


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
        known = known_refusal(option_string, os.environ)
        parser.error(f"{known}{option_string}: {self._feature} is not available yet")


def known_refusal(flag: str | None, env: Mapping[str, str]) -> str:
    """The sentences with which Horovod 0.28 refuses a launcher here, as far as they are true."""
    if flag == "--jsrun" and not env.get("LSB_JOBID"):
        return NO_LSF_TEXT + " "
    if flag in ("--jsrun", "--mpi"):
        return NO_MPI_TEXT + "  "
    return ""


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Reads `argv` (sys.argv) and the configuration file it names; leaves with a message if wrong.

    A knob that neither of them gives is None.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if args.command[:1] == ["--"]:
        args.command = args.command[1:]
    try:
        if args.config_file:
            set_args_from_config(args, read_config(args.config_file))
        validate_config_args(args)
    except OSError as error:
        parser.error(f"--config-file {args.config_file}: {error.strerror}")
    except ValueError as error:
        parser.error(str(error))
    if not (args.check_build or args.version):
        _check_job(parser, args)
    return args


def _check_job(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.num_proc is None:
        parser.error("-np is missing: say how many processes to start, as in -np 2")
    if args.num_proc < 1:
        parser.error(f"-np {args.num_proc}: at least one process must be started")
    if not args.command:
        parser.error(f"no command given, as in: horovodrun -np {args.num_proc} python train.py")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        usage="horovodrun -np N [options] command ...",
        description="Starts N processes of a training script and connects them.",
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="Print the version and leave.")
    add("-np", "--num-proc", type=int, help="Number of processes to start.")
    add("-cb", "--check-build", action="store_true", help="Print what works here and leave.")
    add("--verbose", action="store_true", help="Say what is being done.")
    add("--config-file", help="YAML file with values for flags that are not given.")
    add(
        "--output-filename",
        metavar="DIR",
        help="Also write the output of rank R to DIR/rank.R/stdout and stderr.",
    )
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        action="store_true",
        help="Put the time before every line of output.",
    )
    add("command", nargs=argparse.REMAINDER, help="What to run, with its arguments.")
    hosts = parser.add_argument_group("Hosts").add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", help="Hosts and their slots: host1:2,host2:4.")
    hosts.add_argument("-hostfile", "--hostfile", help="File with lines 'host slots=n'.")
    parser.add_argument_group("Controller").add_argument(
        "--gloo",
        dest="use_gloo",
        action="store_true",
        default=None,
        help="The built-in controller, which is the default.",
    )
    add_knob_flags(parser)
    later = parser.add_argument_group("Not available yet")
    for names, count, feature in LATER_FLAGS:
        later.add_argument(
            *names, action=_Later, nargs=count, feature=feature, help=argparse.SUPPRESS
        )
    for name in HARMLESS_FLAGS:
        later.add_argument(name, action="store_true", default=None, help=argparse.SUPPRESS)
    return parser


def print_error(text: str) -> None:
    """An error of the launcher itself."""
    print(f"horovodrun: error: {text}", file=sys.stderr)
