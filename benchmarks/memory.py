"""Memory that Horovod adds per rank, for models of three sizes.

Each model is trained by processes side by side without Horovod and by as many ranks with it. The
difference of the proportional set size counts a page that n processes share as 1/n in each, so the
sum over ranks is what the host really holds; the resident size counts it in full in each of them.
"""

from __future__ import annotations

import argparse
from typing import Any

from groups import Group, PeerUnavailable, script, side_by_side, under_horovodrun
from harness import Target, argument_parser, median, new_report

TARGET_MIB = 64.0
KINDS = {"Pss": "proportional", "VmRSS": "resident", "VmHWM": "highest resident"}


def main() -> None:
    args = parse_arguments()
    report = new_report("memory", args)
    rounds = args.rounds or (1 if args.quick else 7)
    rows: list[dict[str, Any]] = []
    try:
        for mebibytes in args.sizes or ([8, 128] if args.quick else [8, 128, 512]):
            rows.append(compare(mebibytes, args.ranks, rounds))
    except PeerUnavailable as reason:
        report.note(str(reason))
    if rows:
        report.table(f"MiB more per rank with Horovod than without, {args.ranks} ranks", rows)
        report.targets = [
            Target(
                f"model of {row['model, MiB']} MiB: extra proportional memory per rank",
                row["proportional"],
                TARGET_MIB,
                at_most=True,
                unit="MiB",
            )
            for row in rows
        ]
    report.finish(args.json)


def compare(mebibytes: int, ranks: int, rounds: int) -> dict[str, Any]:
    """Medians over rounds of the difference, in MiB and as a mean over ranks, for one model."""
    without, with_it = [], []
    for _ in range(rounds):
        worker = script("memory_worker.py", "without", str(mebibytes))
        without.append(look(side_by_side(worker, ranks), ranks))
        worker = script("memory_worker.py", "with", str(mebibytes))
        with_it.append(look(under_horovodrun(worker, ranks), ranks))
    row: dict[str, Any] = {
        "model, MiB": mebibytes,
        "resident without": median([found["VmRSS"] for found in without]),
    }
    for key, name in KINDS.items():
        differences = [b[key] - a[key] for a, b in zip(without, with_it, strict=True)]
        row[name] = median(differences)
    return row


def look(commands: list[Any], ranks: int) -> dict[str, float]:
    """Trains in a group of processes and reads their memory: MiB, means over ranks."""
    with Group("memory_worker.py", commands, ranks) as group:
        answers = group.ask("memory")
    return {key: sum(answer[key] for answer in answers) / len(answers) / 1024 for key in KINDS}


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser("Extra memory per rank")
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="MIB", help="parameters in MiB")
    parser.add_argument("--rounds", type=int, help="times that each model is trained both ways")
    return parser.parse_args()


if __name__ == "__main__":
    main()
