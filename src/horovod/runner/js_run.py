"""horovodrun --jsrun: LSF's job step manager starts the processes, each on cores of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from types import FrameType

from horovod.runner import lsf
from horovod.runner.mpi_launch import MpiOptions, Start, run_child, worker_environment
from horovod.runner.plan import Plan

JSRUN = "jsrun"
RANKFILE_PREFIX = "horovod-rankfile-"


def rankfile_text(plan: Plan, allocation: lsf.Allocation, threads: int) -> str:
    """An explicit resource file: for each rank its host and an equal share of the host's threads.

    Args:
        plan: of the job; its hosts must belong to the allocation.
        allocation: of LSF.
        threads: hardware threads of each core.

    Raises:
        ValueError: a host does not belong to the job, or has fewer hardware threads than ranks.
    """
    lines = ["overlapping_rs: allow", "cpu_index_using: logical"]
    before = None
    for slot in plan.slots:
        if slot.hostname not in allocation.cores:
            raise ValueError(
                f"host {slot.hostname} does not belong to this LSF job, which has "
                f"{', '.join(allocation.cores)}; leave -H out to use these"
            )
        cpus = allocation.cores[slot.hostname] * threads
        share = cpus // slot.local_size
        if share == 0:
            raise ValueError(
                f"host {slot.hostname} has {cpus} hardware thread(s) in this LSF job, too few for "
                f"{slot.local_size} ranks; take fewer per host (-H), or more slots (bsub -n)"
            )
        if slot.hostname != before:
            lines.append("")
            before = slot.hostname
        first = slot.local_rank * share
        lines.append(
            f"rank: {slot.rank}: {{ hostname: {slot.hostname}; cpu: {{{first}-{first + share - 1}}} ; "
            "gpu: * ; mem: * }"
        )
    return "\n".join(lines) + "\n"


def plan_jsrun(plan: Plan, options: MpiOptions, env: Mapping[str, str], rankfile: str) -> Start:
    """What `horovodrun --jsrun` executes.

    Raises:
        ValueError: no LSF job, no jsrun, or a flag that jsrun can't honour.
    """
    if not lsf.is_in_job(env):
        raise ValueError(lsf.NO_LSF_TEXT)
    program = shutil.which(JSRUN, path=env.get("PATH", os.defpath))
    if program is None:
        raise ValueError(
            f"--jsrun: {JSRUN} is not in PATH={env.get('PATH', '')}. Load the module that has it, or use "
            "horovodrun without --jsrun"
        )
    for given, flag, instead in (
        (plan.timestamps, "--prefix-output-with-timestamp", "leave it out"),
        (options.binding is not None, "--binding-args", "each rank has the cores of its rankfile"),
    ):
        if given:
            raise ValueError(f"--jsrun cannot honour {flag}: {instead}")
    words = [program, "--erf_input", rankfile]
    if plan.output_directory is not None:
        path = os.path.abspath(plan.output_directory)
        words += ["--stdio_stderr", path, "--stdio_stdout", path]
    arguments = [*(["-tcp"] if options.tcp else []), *options.extra]
    if arguments:
        words += ["--smpiargs", shlex.join(arguments)]
    return Start([*words, *plan.command], worker_environment(plan, options, env))


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def run_jsrun(plan: Plan, options: MpiOptions, env: Mapping[str, str]) -> int:
    """Writes the rankfile, runs jsrun to its end and returns its exit code. Of the main thread.

    It is a child, unlike mpirun: the rankfile is removed when it has ended.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does: jsrun is ended first
        signal.signal(number, _leave)
    text = rankfile_text(plan, lsf.allocation(env), lsf.threads_per_core())
    with tempfile.NamedTemporaryFile("w", prefix=RANKFILE_PREFIX) as file:
        file.write(text)
        file.flush()
        start = plan_jsrun(plan, options, env, file.name)
        if plan.verbose:
            print(text, end="", file=sys.stderr)
        return run_child(plan, start)


def dry_run_text(plan: Plan, options: MpiOptions, env: Mapping[str, str]) -> str:
    """What --dry-run prints."""
    from horovod.runner.mpi_launch import dry_run_text as of_command

    text = rankfile_text(plan, lsf.allocation(env), lsf.threads_per_core())
    start = plan_jsrun(plan, options, env, "<rankfile>")
    indented = "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())
    return f"{of_command(start)}\n\nRankfile:\n{indented.rstrip()}"
