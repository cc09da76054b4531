"""Step time with what autotune has chosen, beside the defaults, and what the tuning itself costs.

Two jobs train the same model. One is tuned first, while the other sleeps; then both have their turns. A
gain depends on the machine: on one host the defaults are hard to beat, and then the claim is that
autotune loses nothing.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

from groups import Command, Conductor, Group, script, under_horovodrun
from harness import Report, Target, argument_parser, median, new_report, percentile

OFF, ON = "autotune off", "autotune on"
MODELS = ("resnet50", "vgg16")
LARGEST_LOSS = 1.03  # what two equal jobs differ by on a machine with neighbours
STEPS_BETWEEN_LOOKS = 20
MOST_STEPS = 20_000  # a job that is not tuned by then is not tuned at all


def main() -> None:
    args = parse_arguments()
    report = new_report("autotune", args)
    for model in args.models:
        compare(model, report, args)
    report.finish(args.json)


def compare(model: str, report: Report, args: argparse.Namespace) -> None:
    """One model, off beside on."""
    with tempfile.TemporaryDirectory(prefix="horovod-bench-") as folder:
        log = Path(folder) / "autotune.csv"
        with Conductor(report.note) as conductor:
            conductor.add(OFF, args.ranks, under_horovodrun, script("autotune_worker.py", model))
            conductor.add(ON, args.ranks, with_autotune, model, log, args)
            if len(conductor.groups) < 2:
                return
            gradients = conductor.groups[OFF].ask("gradients")[0]
            report.note(
                f"{model}: {gradients['tensors']} gradients, {gradients['bytes'] / 1e6:.1f} MB"
            )
            for group in conductor.groups.values():
                group.ask("steps", count=2, batch=args.batch)
            tuning = tune(conductor.groups[ON], args.batch)
            tried = list(csv.DictReader(log.open()))
            seconds = measure(conductor, report, model, args)
        medians = {name: median(values) for name, values in seconds.items()}
        report.table(f"{model}, what was tried", trial_rows(tried))
        report.table(f"{model}, batch of {args.batch} per rank", rows(seconds, medians[OFF]))
        report.note(
            f"{model}: tuning took {len(tuning)} steps, {sum(tuning):.0f} s; a step of them took "
            f"{median(tuning) / medians[OFF]:.3f} times one without autotune (median)."
        )
        report.targets.append(
            Target(
                f"{model}: step time after tuning over autotune off",
                medians[ON] / medians[OFF],
                LARGEST_LOSS,
                at_most=True,
                unit="x",
            )
        )


def with_autotune(model: str, log: Path, args: argparse.Namespace, ranks: int) -> list[Command]:
    """The same job with --autotune; few steps per sample, or it would take an hour."""
    ((command, variables),) = under_horovodrun(script("autotune_worker.py", model), ranks)
    options = [
        "--autotune",
        f"--autotune-log-file={log}",
        f"--autotune-warmup-samples={args.warmup_samples}",
        f"--autotune-steps-per-sample={args.steps_per_sample}",
        f"--autotune-bayes-opt-max-samples={args.samples or (6 if args.quick else 20)}",
    ]
    return [([command[0], *options, *command[1:]], variables)]


def tune(group: Group, batch: int) -> list[float]:
    """Trains until autotune has chosen; returns the seconds of all steps, of the slowest rank each."""
    seconds: list[float] = []
    while len(seconds) < MOST_STEPS:
        answers = group.ask("steps", count=STEPS_BETWEEN_LOOKS, batch=batch)
        seconds += [max(step) for step in zip(*(a["seconds"] for a in answers), strict=True)]
        print(f"tuning: {len(seconds)} steps", flush=True)
        if all(answer["is_tuned"] for answer in answers):
            return seconds
    raise RuntimeError(f"autotune has not finished in {MOST_STEPS} steps")


def measure(
    conductor: Conductor, report: Report, model: str, args: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of every step of the slowest rank, off and on in turn."""
    rounds = args.rounds or (4 if args.quick else 12)
    seconds: dict[str, list[float]] = {name: [] for name in conductor.groups}
    for round_index in range(rounds):
        report.see_cache_state()
        for name, group in conductor.in_turn(round_index):
            group.ask("steps", count=1, batch=args.batch)  # wakes the processes up
            answers = group.ask("steps", count=args.steps, batch=args.batch)
            seconds[name] += [max(s) for s in zip(*(a["seconds"] for a in answers), strict=True)]
        print(f"{model}: round {round_index + 1} of {rounds} done", flush=True)
    return seconds


def trial_rows(tried: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The rows of the log that people look at: the first, the best sample, the last."""
    best = max(tried[:-1], key=lambda row: float(row["score"]))
    return [
        {
            "which": which,
            "threshold, MiB": int(row["tensor_fusion_threshold"]) / 2**20,
            "cycle time, ms": float(row["cycle_time_ms"]),
            "cache": "on" if row["cache_enabled"] == "1" else "off",
            "score, bytes/us": float(row["score"]),
        }
        for which, row in (("start", tried[0]), ("highest sample", best), ("chosen", tried[-1]))
    ]


def rows(seconds: dict[str, list[float]], off: float) -> list[dict[str, Any]]:
    """Step times, one row per job."""
    return [
        {
            "job": name,
            "step, ms": median(values) * 1e3,
            "fastest tenth, ms": percentile(values, 10) * 1e3,
            "slowest tenth, ms": percentile(values, 90) * 1e3,
            "over autotune off": median(values) / off,
        }
        for name, values in seconds.items()
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser("Step time with what autotune chose, beside the defaults")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ranks", type=int, default=2, help="processes that train together")
    parser.add_argument("--batch", type=int, default=4, help="images per rank and step")
    parser.add_argument("--rounds", type=int, help="times that both jobs have their turn")
    parser.add_argument("--steps", type=int, default=8, help="steps of one turn")
    parser.add_argument("--samples", type=int, help="samples of one optimisation")
    parser.add_argument("--steps-per-sample", type=int, default=2, help="training steps of a score")
    parser.add_argument("--warmup-samples", type=int, default=2, help="samples that are discarded")
    return parser.parse_args()


if __name__ == "__main__":
    main()
