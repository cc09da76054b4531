"""What starting costs: importing the door, and `horovodrun` of a script that only calls `init`."""

from __future__ import annotations

import argparse
import compileall
import subprocess
import sys
import time
from pathlib import Path

import horovod
from groups import script
from harness import HOROVODRUN, Report, Target, argument_parser, median, new_report

IMPORT_TARGET, LAUNCH_TARGET = 0.2, 0.5  # seconds more than the import alone


def main() -> None:
    args = parse_arguments()
    report = new_report("launch", args)
    rounds = args.rounds or (3 if args.quick else 11)
    # As pip does when it installs; files that are used where they lie may have none, and compiling them at
    # each start is not what users see.
    compileall.compile_dir(Path(horovod.__file__).parent, quiet=1)
    commands = commands_to_time(args.ranks)
    seconds = time_in_turn(commands, rounds, report)
    if seconds:
        medians = {name: median(values) for name, values in seconds.items()}
        report.table(
            f"seconds from start to exit, {rounds} runs each",
            [
                {"command": name, "median": medians[name], "fastest": min(values)}
                for name, values in seconds.items()
            ],
        )
        report.targets = find_targets(medians, args.ranks)
    report.finish(args.json)


def commands_to_time(ranks: int) -> dict[str, list[list[str]]]:
    """Name of each case and the processes that it starts at the same time."""
    run = [str(HOROVODRUN), "-np", str(ranks)]
    commands = {
        "import torch": [[sys.executable, "-c", "import torch"]],
        "import horovod.torch": [[sys.executable, "-c", "import horovod.torch"]],
    }
    for door in ("torch", "numpy"):
        imports = script("init_only.py", door, "imports")
        commands[f"{door} script, imports alone"] = [imports]
        commands[f"{door} script, imports alone, {ranks} at once"] = [imports] * ranks
        commands[f"{door} script under horovodrun"] = [
            [*run, *script("init_only.py", door, "init")]
        ]
    return commands


def time_in_turn(
    commands: dict[str, list[list[str]]], rounds: int, report: Report
) -> dict[str, list[float]]:
    """Runs every case once per round; nothing if a case fails, with its output."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for round_index in range(rounds + 1):
        for name, processes in commands.items():
            try:
                took = run_at_once(processes)
            except (OSError, subprocess.CalledProcessError) as error:
                report.note(f"{name} failed: {error}\n{getattr(error, 'stderr', '')}")
                return {}
            if round_index > 0:  # the first round only warms the page cache
                seconds[name].append(took)
    return seconds


def run_at_once(commands: list[list[str]]) -> float:
    """Seconds until the last of the processes has ended; raises if one of them fails."""
    started = time.perf_counter()
    processes = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    errors = [process.communicate()[1] for process in processes]
    took = time.perf_counter() - started
    for process, error in zip(processes, errors, strict=True):
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args, stderr=error)
    return took


def find_targets(medians: dict[str, float], ranks: int) -> list[Target]:
    """Differences of medians against the limits."""
    targets = [
        Target(
            "import horovod.torch, more than import torch",
            medians["import horovod.torch"] - medians["import torch"],
            IMPORT_TARGET,
            at_most=True,
            unit="s",
        )
    ]
    for door in ("torch", "numpy"):
        launched = medians[f"{door} script under horovodrun"]
        for alone in (f"imports alone, {ranks} at once", "imports alone"):
            targets.append(
                Target(
                    f"horovodrun -np {ranks} of init, {door}: more than its {alone}",
                    launched - medians[f"{door} script, {alone}"],
                    LAUNCH_TARGET,
                    at_most=True,
                    unit="s",
                )
            )
    return targets


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser("Start-up time of the door and of horovodrun")
    parser.add_argument("--ranks", type=int, default=2, help="processes that horovodrun starts")
    parser.add_argument("--rounds", type=int, help="runs of each case")
    return parser.parse_args()


if __name__ == "__main__":
    main()
