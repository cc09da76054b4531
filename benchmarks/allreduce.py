"""Allreduce of float32 on one host: Horovod, torch-Gloo, MPI and plain memcpy, size by size.

With --hosts between several, on a link of limited rate: see between_hosts.py.

All peers run in one invocation and take turns at every size, so that they meet the machine in the
same state. Algorithm bandwidth is bytes / time.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from between_hosts import measure_between_hosts
from groups import MPI_KINDS, Conductor, Group, script, side_by_side, under_horovodrun, under_mpi
from harness import (
    FOLDER,
    Report,
    Target,
    argument_parser,
    cache_line_round_trip,
    cache_state_name,
    median,
    new_report,
    paired_ratio,
    size_text,
)
from huge import reduce_huge_tensors

SIZES = [4, 64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, *(1 << shift for shift in range(20, 29, 2))]
QUICK_SIZES = [4, 64 << 10, 1 << 20, 16 << 20, 64 << 20]
OURS, GLOO, MEMCPY = "Horovod", "torch-Gloo", "memcpy"
MIB = 1 << 20

Seconds = dict[int, dict[str, list[float]]]  # bytes -> peer -> one value per round
Medians = dict[int, dict[str, float]]  # bytes -> peer -> seconds
States = dict[int, list[str]]  # bytes -> how the cores were placed in each round
# From here on the targets depend on how the cores are placed, which changes from minute to minute.
LARGE = 64 * MIB


def main() -> None:
    args = parse_arguments()
    report = new_report("allreduce", args)
    if args.huge:
        reduce_huge_tensors(report, args.ranks)
        report.finish(args.json)
        return
    if args.hosts:
        measure_between_hosts(report, args.rate, args.quick)
        report.finish(args.json)
        return
    with Conductor(report.note) as conductor:
        start_peers(conductor, args)
        seconds, states = measure_all(conductor, report, args)
    medians = {size: {p: median(t) for p, t in peers.items()} for size, peers in seconds.items()}
    tabulate(report, medians, args.ranks)
    report.targets = find_targets(seconds, args.ranks, states)
    report.finish(args.json)
    if args.plot:
        plot(medians, args.ranks, args.plot)


def start_peers(conductor: Conductor, args: argparse.Namespace) -> None:
    """Starts what can run here."""
    worker, ranks = "collective_worker.py", args.ranks
    conductor.add(OURS, ranks, under_horovodrun, script(worker, "horovod-torch"))
    conductor.add(GLOO, ranks, side_by_side, script(worker, "torch-gloo"))
    # With more ranks than cores MPI's busy waiting makes every figure meaningless.
    for kind, name in MPI_KINDS.items() if ranks == 2 else ():
        conductor.add(name, ranks, under_mpi, kind, args.mpi_root, worker, ["mpi"])
    conductor.add(MEMCPY, ranks, side_by_side, script(worker, "memcpy"))


def measure_all(
    conductor: Conductor, report: Report, args: argparse.Namespace
) -> tuple[Seconds, States]:
    """The median time of every peer at every size, and the placement at large ones, for each round."""
    sizes = args.sizes or (QUICK_SIZES if args.quick else SIZES)
    rounds = args.rounds or (2 if args.quick else 5)
    budget = 0.1 if args.quick else 0.25
    seconds: Seconds = {size: {name: [] for name in conductor.groups} for size in sizes}
    states: States = {size: [] for size in sizes if size >= LARGE}
    for round_index in range(rounds):
        report.see_cache_state()
        for size in sizes:
            before = cache_state_name(cache_line_round_trip()) if size in states else ""
            for name, group in conductor.in_turn(round_index):
                seconds[size][name].append(measure(group, size, budget))
            if size in states:
                after = cache_state_name(cache_line_round_trip())
                states[size].append(after if after == before else "changing")
        print(f"round {round_index + 1} of {rounds} done", flush=True)
    return seconds, states


def measure(group: Group, size: int, budget: float) -> float:
    """Seconds of one call: the median over calls of the mean over ranks."""
    estimate = run(group, size, iterations=2, warm_up=1)
    iterations = max(3, min(500, int(budget / max(estimate, 1e-6))))
    # Ranks that wake up together may share a core at first; the scheduler needs some time to part them.
    warm_up = max(1, min(500, int(budget / 4 / max(estimate, 1e-6))))
    return run(group, size, iterations, warm_up)


def run(group: Group, size: int, iterations: int, warm_up: int) -> float:
    """One measurement on all ranks of a group."""
    answers = group.ask(
        "measure", bytes=size, iterations=iterations, warm_up=warm_up, in_place=True, pause=0
    )
    per_call = zip(*(answer["seconds"] for answer in answers), strict=True)
    return median([sum(ranks) / len(ranks) for ranks in per_call])


def tabulate(report: Report, medians: Medians, ranks: int) -> None:
    """Times for small sizes, bandwidths for all."""
    peers = list(next(iter(medians.values())))
    times: list[dict[str, Any]] = [
        {"bytes": size_text(size), **{p: row[p] * 1e6 for p in peers}}
        for size, row in medians.items()
    ]
    report.table(f"microseconds per call, {ranks} ranks", times)
    bandwidths: list[dict[str, Any]] = [
        {"bytes": size_text(size), **{p: size / row[p] / 1e9 for p in peers}}
        for size, row in medians.items()
        if size >= 1 << 10
    ]
    report.table(f"algorithm bandwidth in GB/s, {ranks} ranks", bandwidths)


def find_targets(seconds: Seconds, ranks: int, states: States) -> list[Target]:
    """The claims that these sizes and peers allow to check, in the order of the sizes.

    What a ratio is made of was measured within one round; the figure is the median over rounds.
    """
    found: list[Target] = []
    for size, row in seconds.items():
        if OURS not in row:
            continue
        found += targets_of_size(size, row, ranks)
        if ranks == 2 and size >= LARGE and MEMCPY in row:
            found += shares_of_memcpy(size, row, states[size])
    return found


def targets_of_size(size: int, row: dict[str, list[float]], ranks: int) -> list[Target]:
    """How much faster than the peers that were measured."""
    mpis = [name for name in MPI_KINDS.values() if name in row]
    best_mpi = min(mpis, key=lambda name: median(row[name]), default="")
    if ranks > 2:
        wanted = {"torch-Gloo": (GLOO, 1.0)}
    elif size >= LARGE:
        wanted = {"the best MPI": (best_mpi, 2.5), "torch-Gloo": (GLOO, 4.0)}
    elif MIB <= size <= 16 * MIB:
        wanted = {"the best MPI": (best_mpi, 1.0)}
    elif size == 64 << 10:
        wanted = {"the best MPI": (best_mpi, 0.25), "torch-Gloo": (GLOO, 1.0)}
    else:
        wanted = {}
    return [
        Target(
            f"{size_text(size)}: speed over {title}",
            paired_ratio(row[peer], row[OURS]),
            factor,
            at_most=False,
            unit="x",
        )
        for title, (peer, factor) in wanted.items()
        if peer in row
    ]


def shares_of_memcpy(size: int, row: dict[str, list[float]], states: list[str]) -> list[Target]:
    """One claim for each placement of the cores that lasted for a round."""
    found = []
    for state, share in {"shared": 0.75, "apart": 0.6, "unknown": 0.6}.items():
        rounds = [index for index, seen in enumerate(states) if seen == state]
        if rounds:
            ours, memcpy = ([row[name][index] for index in rounds] for name in (OURS, MEMCPY))
            count = f"{len(rounds)} round{'s' if len(rounds) > 1 else ''}"
            claim = f"{size_text(size)}: share of the memcpy rate, {state} ({count})"
            found.append(Target(claim, paired_ratio(memcpy, ours), share, at_most=False))
    return found


def plot(medians: Medians, ranks: int, file: Path) -> None:
    """Bandwidth over size as a picture; says so where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed (`pip install matplotlib`)")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    sizes = [size for size in medians if size >= 1 << 10]
    for name in next(iter(medians.values())):
        style = "--" if name == MEMCPY else "-"
        rates = [size / medians[size][name] / 1e9 for size in sizes]
        axes.plot(sizes, rates, style, marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel("algorithm bandwidth, GB/s")
    axes.set_title(f"allreduce of float32, {ranks} ranks on one host")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    print(f"written: {file}")


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser("Allreduce on one host against its peers")
    parser.add_argument("--ranks", type=int, default=2, help="processes of each peer")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BYTES", help="multiples of 4")
    parser.add_argument("--rounds", type=int, help="times that every peer has its turn")
    parser.add_argument(
        "--huge", action="store_true", help="only reduce tensors of 2.25 GiB and check the sums"
    )
    parser.add_argument(
        "--hosts",
        action="store_true",
        help="only between hosts, which are network namespaces, on a link of limited rate",
    )
    parser.add_argument("--rate", default="1gbit", help="of every host's link, for --hosts")
    parser.add_argument(
        "--plot", type=Path, metavar="PNG", help="also draw the bandwidths; needs matplotlib"
    )
    parser.add_argument(
        "--mpi-root",
        type=Path,
        default=FOLDER.parent / ".venv-bench",
        help="folder with the environments openmpi, mpich and impi-rt",
    )
    args = parser.parse_args()
    if args.ranks < 2:
        parser.error("--ranks must be at least 2")
    if any(size < 4 or size % 4 for size in args.sizes or ()):
        parser.error("--sizes must be positive multiples of 4")
    return args


if __name__ == "__main__":
    main()
