"""The time of one synchronous allreduce of a single number, through each door and torch-Gloo."""

from __future__ import annotations

import argparse
from typing import Any

from groups import Conductor, script, side_by_side, under_horovodrun
from harness import Target, argument_parser, median, new_report, percentile

BYTES = 4
DOORS = {"hvd.allreduce, torch": "horovod-torch", "hvd.allreduce, numpy": "horovod-numpy"}
GLOO = "torch-Gloo all_reduce"
TARGET_MICROSECONDS = 40.0


def main() -> None:
    args = parse_arguments()
    report = new_report("latency", args)
    rounds = args.rounds or (2 if args.quick else 5)
    calls = 300 if args.quick else 2000
    with Conductor(report.note) as conductor:
        worker = "collective_worker.py"
        for name, peer in DOORS.items():
            conductor.add(name, args.ranks, under_horovodrun, script(worker, peer))
        conductor.add(GLOO, args.ranks, side_by_side, script(worker, "torch-gloo"))

        without_pause: dict[str, list[float]] = {name: [] for name in conductor.groups}
        with_pause: dict[str, list[float]] = {name: [] for name in conductor.groups}
        for round_index in range(rounds):
            report.see_cache_state()
            for name, group in conductor.in_turn(round_index):
                for samples, pause, count in (
                    (without_pause, 0.0, calls),
                    (with_pause, args.pause_ms / 1e3, calls // 5),
                ):
                    answers = group.ask(
                        "measure",
                        bytes=BYTES,
                        iterations=count,
                        warm_up=200,
                        in_place=False,
                        pause=pause,
                    )
                    samples[name] += [s * 1e6 for answer in answers for s in answer["seconds"]]

    report.table("back to back, microseconds per call", percentiles(without_pause))
    title = f"after up to {args.pause_ms:g} ms of computing, microseconds per call"
    report.table(title, percentiles(with_pause))
    report.targets = [
        Target(f"{name}, median", median(without_pause[name]), TARGET_MICROSECONDS, True, "us")
        for name in DOORS
        if name in without_pause
    ]
    report.finish(args.json)


def percentiles(samples: dict[str, list[float]]) -> list[dict[str, Any]]:
    """One row per peer."""
    return [
        {
            "call": name,
            "median": median(values),
            **{f"p{percent}": percentile(values, percent) for percent in (5, 90, 99)},
            "calls": len(values),
        }
        for name, values in samples.items()
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser("Latency of an allreduce of 4 bytes")
    parser.add_argument("--ranks", type=int, default=2, help="processes of each peer")
    parser.add_argument("--rounds", type=int, help="times that every peer has its turn")
    parser.add_argument(
        "--pause-ms",
        type=float,
        default=2.0,
        help="computing between the calls of the second table",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
