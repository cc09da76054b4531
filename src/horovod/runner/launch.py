"""The console script horovodrun: reads the command line, runs the job, returns its exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys

import horovod
from horovod.runner.cli import parse_args, print_error
from horovod.runner.plan import Plan, choose_hosts

__all__ = ["check_build", "parse_args", "run_commandline"]


def check_build(verbose: bool = False) -> str:
    """The text of --check-build."""
    from horovod.runner.check_build import check_build as report

    return report(verbose)


def run_commandline(argv: list[str] | None = None) -> int:
    """Runs horovodrun with `argv` (sys.argv); returns its exit code."""
    args = parse_args(argv)
    if args.version:
        print(horovod.__version__)
        return 0
    if args.check_build:
        print(check_build(args.verbose))
        return 0
    try:
        return _run(_plan(args))
    except (ValueError, NotImplementedError) as error:
        print_error(str(error))
        return 1
    except KeyboardInterrupt:  # before the job has begun or after it has ended
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has left. Python must not try to flush what it still holds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE


def _plan(args: argparse.Namespace) -> Plan:
    from horovod.common.knobs import value_of
    from horovod.runner.knob_options import set_env_from_args

    variables = set_env_from_args({}, args)
    try:
        slots = choose_hosts(args.num_proc, args.hosts, args.hostfile)
    except OSError as error:
        raise ValueError(f"host file {args.hostfile}: {error.strerror}") from None
    return Plan(
        slots=slots,
        command=args.command,
        variables=variables,
        output_directory=args.output_filename,
        timestamps=args.prefix_output_with_timestamp,
        verbose=args.verbose,
        start_timeout=float(value_of("HOROVOD_START_TIMEOUT", {**os.environ, **variables})),
    )


def _run(plan: Plan) -> int:
    from horovod.runner.run_job import run_job

    try:
        outcome, _ = run_job(plan, owns_process=True)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ValueError(str(error)) from error
    if outcome.abandoned:
        os._exit(outcome.exit_code)  # no flush, which may never end
    if outcome.report:
        sys.stdout.flush()
        print(f"\n{outcome.report}", end="", file=sys.stderr, flush=True)
    return outcome.exit_code
