"""What it costs to be seen: metrics and the flight recorder, which are always on, and the timeline.

Compared in turn: the defaults, the flight recorder off, a timeline of rank 0, timelines of all ranks, and,
with --baseline, another installation of Horovod (one from before there were metrics, say). For blocking
calls of four bytes and more, and for a training step of the VGG-16-sized model.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from groups import Command, Conductor, script, under_horovodrun
from harness import (
    FOLDER,
    Report,
    Target,
    argument_parser,
    median,
    new_report,
    paired_ratio,
    size_text,
)

DEFAULTS, WITHOUT_RECORDER = "defaults", "flight recorder off"
TIMELINE, ALL_TIMELINES = "timeline", "timelines of all ranks"
BASELINE, AGAIN = "baseline", "defaults, again"
SIZES = [4, 64 << 10, 1 << 20, 16 << 20]
MOST_MICROSECONDS, MOST_DEFAULT_RATIO, MOST_TIMELINE_RATIO = 1.0, 1.01, 1.02


def main() -> None:
    args = parse_arguments()
    report = new_report("overhead", args)
    with tempfile.TemporaryDirectory() as folder:
        if not args.steps_only:
            compare_calls(report, args, Path(folder))
        if not args.calls_only:
            compare_steps(report, args, Path(folder))
    report.finish(args.json)


def with_variables(variables: dict[str, str], arguments: list[str], ranks: int) -> list[Command]:
    """Horovodrun in an environment that has these variables, too."""
    return [
        (command, {**more, **variables}) for command, more in under_horovodrun(arguments, ranks)
    ]


def of_baseline(python: Path, arguments: list[str], ranks: int) -> list[Command]:
    """The other installation's launcher and interpreter."""
    return [([str(python), "-m", "horovod.runner", "-np", str(ranks), str(python), *arguments], {})]


def add_ways(conductor: Conductor, command: list[str], ranks: int, folder: Path) -> None:
    """The ways that need no other installation."""
    ways: dict[str, dict[str, str]] = {
        DEFAULTS: {},
        WITHOUT_RECORDER: {"HOROVOD_FLIGHT_RECORDER_SIZE": "0"},
        TIMELINE: {"HOROVOD_TIMELINE": str(folder / "one.json")},
        ALL_TIMELINES: {
            "HOROVOD_TIMELINE": str(folder / "all.json"),
            "HOROVOD_TIMELINE_ALL_RANKS": "1",
        },
    }
    for name, variables in ways.items():
        conductor.add(name, ranks, with_variables, variables, command)


def compare_calls(report: Report, args: argparse.Namespace, folder: Path) -> None:
    """Blocking calls of several sizes, through the NumPy door."""
    rounds = args.rounds or (4 if args.quick else 15)
    seconds: dict[int, dict[str, list[float]]] = {}
    with Conductor(report.note) as conductor:
        worker = "collective_worker.py"
        add_ways(conductor, script(worker, "horovod-numpy"), args.ranks, folder)
        if args.baseline:
            command = [str(FOLDER / worker), "horovod-numpy"]
            conductor.add(BASELINE, args.ranks, of_baseline, args.baseline, command)
        seconds = {size: {name: [] for name in conductor.groups} for size in SIZES}
        for round_index in range(rounds):
            report.see_cache_state()
            for size in SIZES:
                count = 1000 if size <= 64 << 10 else 20 if size > 1 << 20 else 200
                for name, group in conductor.in_turn(round_index):
                    answers = group.ask(
                        "measure",
                        bytes=size,
                        iterations=count,
                        warm_up=count // 4,
                        in_place=True,
                        pause=0.0,
                    )
                    per_call = [s for answer in answers for s in answer["seconds"]]
                    seconds[size][name].append(median(per_call))
    medians = {size: {n: median(v) for n, v in row.items() if v} for size, row in seconds.items()}
    rows = [
        {"bytes": size_text(size), **{name: value * 1e6 for name, value in row.items()}}
        for size, row in medians.items()
    ]
    report.table(f"microseconds per call, {args.ranks} ranks; medians of {rounds} rounds", rows)
    smallest = seconds[SIZES[0]]
    for name, other in ((BASELINE, "baseline"), (WITHOUT_RECORDER, "the flight recorder off")):
        if smallest.get(name):
            pairs = zip(smallest[DEFAULTS], smallest[name], strict=True)
            more = median([ours - theirs for ours, theirs in pairs]) * 1e6
            claim = f"{size_text(SIZES[0])}: defaults, more than {other}"
            report.targets.append(Target(claim, more, MOST_MICROSECONDS, True, "us"))
    for size in SIZES[2:]:
        ratio = paired_ratio(seconds[size][TIMELINE], seconds[size][DEFAULTS])
        claim = f"{size_text(size)}: with a timeline over without"
        report.targets.append(Target(claim, ratio, MOST_TIMELINE_RATIO, True, "x"))


def compare_steps(report: Report, args: argparse.Namespace, folder: Path) -> None:
    """Training steps in PyTorch.

    Where a process happens to find its memory makes its steps some per cent faster or slower for as long as
    it lives. So each way is started several times, and the defaults twice each time: what the two differ is
    what can't be told here.
    """
    rounds = args.rounds or (2 if args.quick else 4)
    milliseconds: dict[str, list[float]] = {}
    page_faults: dict[str, list[float]] = {}
    for start in range(2 if args.quick else 6):
        with Conductor(report.note) as conductor:
            worker = script("training_worker.py", "horovod")
            add_ways(conductor, worker, args.ranks, folder)
            conductor.add(AGAIN, args.ranks, with_variables, {}, worker)
            if args.baseline_torch:
                command = [str(FOLDER / "training_worker.py"), "horovod"]
                conductor.add(BASELINE, args.ranks, of_baseline, args.baseline_torch, command)
            of_start: dict[str, list[float]] = {name: [] for name in conductor.groups}
            for round_index in range(rounds):
                report.see_cache_state()
                for name, group in conductor.in_turn(start + round_index):
                    answers = group.ask("steps", batch=8, count=4)
                    steps = [s * 1e3 for answer in answers for s in answer["seconds"][1:]]
                    of_start[name].append(median(steps))
                    faults = page_faults.setdefault(name, [])
                    faults += [answer["page_faults"] for answer in answers]
        for name, values in of_start.items():
            milliseconds.setdefault(name, []).append(median(values))
    over_defaults = {
        name: paired_ratio(values, milliseconds[DEFAULTS]) for name, values in milliseconds.items()
    }
    rows: list[dict[str, Any]] = [
        {
            "way": name,
            "step, ms": median(values),
            "over defaults": over_defaults[name],
            "page faults per step": median(page_faults[name]),
        }
        for name, values in milliseconds.items()
    ]
    report.table(f"training step, batch of 8 per rank, {args.ranks} ranks", rows)
    for name in (BASELINE, WITHOUT_RECORDER):
        if name in milliseconds:
            ratio = paired_ratio(milliseconds[DEFAULTS], milliseconds[name])
            claim = f"training step: defaults over {name}"
            report.targets.append(Target(claim, ratio, MOST_DEFAULT_RATIO, True, "x"))
    for name in (TIMELINE, ALL_TIMELINES):
        claim = f"training step: {name} over defaults"
        report.targets.append(Target(claim, over_defaults[name], MOST_TIMELINE_RATIO, True, "x"))


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser("The cost of metrics, flight recorder and timeline")
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument(
        "--rounds", type=int, help="times that every way has its turn, in each start"
    )
    parser.add_argument("--calls-only", action="store_true", help="no training")
    parser.add_argument("--steps-only", action="store_true", help="training alone")
    parser.add_argument(
        "--baseline", type=Path, metavar="PYTHON", help="interpreter of another installation"
    )
    parser.add_argument(
        "--baseline-torch", type=Path, metavar="PYTHON", help="the same, with PyTorch, for training"
    )
    args = parser.parse_args()
    for python in (args.baseline, args.baseline_torch):
        if python is not None and not os.access(python, os.X_OK):
            parser.error(f"{python} can't be executed")
    return args


if __name__ == "__main__":
    main()
