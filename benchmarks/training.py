"""Step time of a VGG-16-sized model (134 MB of gradients, CIFAR-10 shapes), one thread per rank.

Compared in turn, for PyTorch and for TensorFlow:

- one process alone, and independent ones side by side, which share memory and cores and exchange nothing;
- independent ones with the huge pages that horovodrun asks for;
- these waiting for each other once a step: what being in step costs, as all need the memory at the same time;
- the framework's own way (DistributedDataParallel on Gloo, MultiWorkerMirroredStrategy with its ring);
- Horovod.

The first and the framework's own are started by hand and have the pages that a program gets then. Efficiency
is throughput of N / (N x throughput of one). Steps are compared within each round, in which all have their
turn; the figure is the median over the rounds of several starts: where a process happens to find its memory
makes its steps some per cent faster or slower for as long as it lives.
"""

from __future__ import annotations

import argparse
from typing import Any

from groups import Conductor, script, side_by_side, under_horovodrun, with_huge_pages
from harness import Report, Target, argument_parser, median, new_report, paired_ratio

ALONE, INDEPENDENT, OURS = "alone", "independent, side by side", "Horovod"
HUGE_PAGES = "independent, huge pages"
IN_STEP = "independent, in step"
# Framework -> worker script, the name of its own way and that way's argument.
FRAMEWORKS = {
    "torch": ("training_worker.py", "DDP on Gloo", "ddp"),
    "tensorflow": ("training_worker_tensorflow.py", "MultiWorkerMirrored, ring", "multiworker"),
}
TARGET_RATIO = 1.10


def main() -> None:
    args = parse_arguments()
    report = new_report("training", args)
    for framework in args.frameworks:
        compare(framework, report, args)
    report.finish(args.json)


def compare(framework: str, report: Report, args: argparse.Namespace) -> None:
    """All ways of one framework."""
    peer = FRAMEWORKS[framework][1]
    batches = args.batch_sizes or ([8] if args.quick else [8, 32])
    seconds: dict[int, dict[str, list[float]]] = {batch: {} for batch in batches}
    starts = args.starts or (1 if args.quick else 3)
    for start in range(starts):
        print(f"{framework}: start {start + 1} of {starts}", flush=True)
        with Conductor(report.note) as conductor:
            start_groups(conductor, framework, args.ranks)
            if start == 0:
                gradient_bytes = conductor.groups[ALONE].ask("gradient_bytes")[0]["bytes"]
                report.note(f"{framework}, gradients: {gradient_bytes / 1e6:.1f} MB")
            for batch in batches:
                for name, steps in measure(conductor, report, batch, args).items():
                    seconds[batch].setdefault(name, []).extend(steps)
    for batch in batches:
        longest = max(len(steps) for steps in seconds[batch].values())
        # What could not be started each time has been reported.
        of_batch = {name: steps for name, steps in seconds[batch].items() if len(steps) == longest}
        ranks = {name: 1 if name == ALONE else args.ranks for name in of_batch}
        report.table(f"{framework}, batch of {batch} per rank", rows(of_batch, ranks, batch))
        if OURS not in of_batch:
            continue
        what = f"{framework}, batch {batch}: step time over"
        ratio = paired_ratio(of_batch[OURS], of_batch[INDEPENDENT])
        claim = f"{what} {args.ranks} independent processes"
        report.targets.append(Target(claim, ratio, TARGET_RATIO, at_most=True, unit="x"))
        if peer in of_batch:
            ratio = paired_ratio(of_batch[OURS], of_batch[peer])
            report.targets.append(Target(f"{what} {peer}", ratio, 1.0, at_most=True, unit="x"))


def start_groups(conductor: Conductor, framework: str, ranks: int) -> None:
    """One group per way to train."""
    worker, peer, argument = FRAMEWORKS[framework]
    conductor.add(ALONE, 1, side_by_side, script(worker, "alone"))
    conductor.add(INDEPENDENT, ranks, side_by_side, script(worker, "alone"))
    conductor.add(HUGE_PAGES, ranks, with_huge_pages, script(worker, "alone"))
    conductor.add(IN_STEP, ranks, under_horovodrun, script(worker, "in-step"))
    conductor.add(peer, ranks, side_by_side, script(worker, argument))
    conductor.add(OURS, ranks, under_horovodrun, script(worker, "horovod"))


def measure(
    conductor: Conductor, report: Report, batch: int, args: argparse.Namespace
) -> dict[str, list[float]]:
    """The median step time of each way in each round, in seconds."""
    rounds = args.rounds or (2 if args.quick else 6)
    steps = 2 if args.quick else 3
    for group in conductor.groups.values():
        group.ask(
            "steps", count=2, batch=batch
        )  # the first steps allocate memory and agree on names
    seconds: dict[str, list[float]] = {name: [] for name in conductor.groups}
    for round_index in range(rounds):
        report.see_cache_state()
        for name, group in conductor.in_turn(round_index):
            answers = group.ask("steps", count=steps, batch=batch)
            seconds[name].append(median([s for answer in answers for s in answer["seconds"]]))
        print(f"batch {batch}: round {round_index + 1} of {rounds} done", flush=True)
    return seconds


def rows(
    seconds: dict[str, list[float]], ranks: dict[str, int], batch: int
) -> list[dict[str, Any]]:
    """Step time and what follows from it, one row per way to train."""
    table = []
    for name, steps in seconds.items():
        step = median(steps)
        speed_up = ranks[name] * median(seconds[ALONE]) / step
        table.append(
            {
                "way": name,
                "processes": ranks[name],
                "step, ms": step * 1e3,
                "images/s, all": ranks[name] * batch / step,
                "speed-up over alone": speed_up,
                "efficiency": speed_up / ranks[name],
                "over independent": paired_ratio(steps, seconds[INDEPENDENT]),
                "over huge pages": paired_ratio(steps, seconds[HUGE_PAGES]),
            }
        )
    return table


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser("Training step time against independent processes and peers")
    parser.add_argument(
        "--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS), help="default: all"
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes that train together")
    parser.add_argument("--batch-sizes", type=int, nargs="+", help="images per rank and step")
    parser.add_argument("--starts", type=int, help="times that all processes are started")
    parser.add_argument(
        "--rounds", type=int, help="times that every way has its turn, in each start"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
