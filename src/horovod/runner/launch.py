"""The console script horovodrun: reads the command line, runs the job, returns its exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys

import horovod
from horovod.runner.cli import MONITOR_SECONDS, build_parser, parse_args, print_error
from horovod.runner.plan import Plan, assign, choose_hosts, settle_start_timeout
from horovod.runner.ssh import SshOptions

__all__ = ["check_build", "parse_args", "run_commandline"]

# The first word of the command line, and where the function is that takes the rest and returns an exit code.
SUBCOMMANDS = {
    "config": ("horovod.runner.configure", "configure"),
    "doctor": ("horovod.runner.doctor", "doctor"),
    "flight-recorder": ("horovod.runner.flight_recorder.command", "flight_recorder"),
    "predict": ("horovod.runner.scaling.predict_command", "predict"),
    "scaling": ("horovod.runner.scaling.command", "scaling"),
    "timeline": ("horovod.runner.timeline.command", "timeline"),
}


def check_build(verbose: bool = False) -> str:
    """The text of --check-build."""
    from horovod.runner.check_build import check_build as report

    return report(verbose)


def run_commandline(argv: list[str] | None = None) -> int:
    """Runs horovodrun with `argv` (sys.argv); returns its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in SUBCOMMANDS:
        module, function = SUBCOMMANDS[words[0]]
        status: int = getattr(importlib.import_module(module), function)(words[1:])
        return status
    args = parse_args(words)
    if args.version:
        print(horovod.__version__)
        return 0
    if args.check_build:
        print(check_build(args.verbose))
        return 0
    if args.check_gpu:
        return _check_gpu()
    if args.print_completion:
        from horovod.runner.completion import completion_script

        print(completion_script(build_parser(), args.print_completion), end="")
        return 0
    try:
        plan = _plan(args)
        if args.use_mpi or args.use_jsrun:
            return _run_with_other_launcher(args, plan)
        if args.dry_run:
            from horovod.runner.agent_link import package_root
            from horovod.runner.dry_run import dry_run_text

            print(dry_run_text(plan, os.environ, package_root=package_root()))
            return 0
        return _run(plan)
    except (ValueError, NotImplementedError) as error:
        print_error(str(error))
        return 1
    except KeyboardInterrupt:  # before the job has begun or after it has ended
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has left. Python must not try to flush what it still holds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE


def _check_gpu() -> int:
    from horovod.runner.check_gpu import check_gpu

    report = check_gpu()
    print(report.text())
    return 0 if report.usable else 1


def _plan(args: argparse.Namespace) -> Plan:
    from horovod.runner.driver import say_on_stderr
    from horovod.runner.knob_options import set_env_from_args

    variables = set_env_from_args({}, args)
    if args.tcp:
        variables["NCCL_IB_DISABLE"] = "1"
    try:
        hosts = choose_hosts(args.num_proc, args.hosts, args.hostfile, say_on_stderr)
    except OSError as error:
        raise ValueError(f"host file {args.hostfile}: {error.strerror}") from None
    start_timeout = settle_start_timeout(len(hosts), variables, os.environ)
    return Plan(
        num_proc=args.num_proc,
        hosts=hosts,
        slots=assign(args.num_proc, hosts),
        command=args.command,
        variables=variables,
        output_directory=args.output_filename,
        timestamps=args.prefix_output_with_timestamp,
        verbose=args.verbose,
        start_timeout=start_timeout,
        ssh=SshOptions(args.ssh_port, args.ssh_identity_file, bool(args.ssh_accept_new_host_keys)),
        interfaces=args.nics,
        uses_srun=args.uses_srun,
        monitor_seconds=(args.monitor_interval or MONITOR_SECONDS) if args.monitor else None,
    )


def _run_with_other_launcher(args: argparse.Namespace, plan: Plan) -> int:
    from horovod.runner import js_run, mpi_launch

    flag = "--mpi" if args.use_mpi else "--jsrun"
    if plan.uses_srun:
        raise ValueError(f"give either {flag} or --srun, not both")
    options = mpi_launch.MpiOptions.from_texts(args.mpi_args, args.tcp, args.binding_args)
    if args.use_jsrun:
        if args.dry_run:
            print(js_run.dry_run_text(plan, options, os.environ))
            return 0
        return js_run.run_jsrun(plan, options, os.environ)
    start = mpi_launch.plan_mpirun(plan, options, os.environ)
    if args.dry_run:
        print(mpi_launch.dry_run_text(start))
        return 0
    return mpi_launch.replace_process(plan, start)


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
