"""Horovod's allreduce beside the bare exchange of the same bytes, in several ways (bare_exchange.cpp).

The bare exchange is a C++ program of two processes with nothing around it: no Python, no negotiation, no
tensors of any shape. Its time in the way that Horovod goes ("arena") is what this machine lets an allreduce
of two ranks have; the other ways are what Horovod might do instead.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from groups import Conductor, script, under_horovodrun
from harness import (
    CompilerFailed,
    Report,
    argument_parser,
    compile_program,
    median,
    new_report,
    paired_ratio,
    size_text,
)

SIZES = [256 << 10, *(1 << shift for shift in range(20, 29, 2))]
QUICK_SIZES = [1 << 20, 64 << 20]
OURS = "Horovod"
WAYS = {
    "arena": "the halves through shared memory, as Horovod does it",
    "streaming": "the same, written with stores that go around the caches",
    "demoted": "the same, each line pushed to the cache that the cores share (cldemote)",
    "prefetched": "the same, lines fetched for writing a page ahead",
    "whole": "everybody reads and sums everything, with half the waits",
    "kernel": "no shared memory: the kernel copies from the other process (process_vm_readv)",
    "memcpy": "no sum: both processes copy as many bytes",
}
COMPILER_OPTIONS = ("-O3", "-march=native", "-mcldemote")
SIZE_UNIT = 8192  # bytes: two halves of whole tiles
CANNOT_BE_HAD = 3

Times = dict[int, dict[str, list[float]]]  # bytes -> way -> microseconds of a call, one per round


def main() -> None:
    args = parse_arguments()
    report = new_report("bare_exchange", args)
    for way, meaning in WAYS.items():
        report.note(f"{way}: {meaning}")
    try:
        program = compile_program("bare_exchange.cpp", *COMPILER_OPTIONS)
    except CompilerFailed as error:
        report.note(f"nothing was measured; it needs an x86-64 processor with AVX2, and {error}")
    else:
        tabulate(report, measure(report, program, args))
    report.finish(args.json)


def measure(report: Report, program: Path, args: argparse.Namespace) -> Times:
    """All ways in turn, round by round; those that can't be had here are left out."""
    sizes = args.sizes or (QUICK_SIZES if args.quick else SIZES)
    rounds = args.rounds or (2 if args.quick else 5)
    times: Times = {size: {} for size in sizes}
    with Conductor(report.note) as conductor:
        arguments = script("collective_worker.py", "horovod-numpy")
        conductor.add(OURS, 2, under_horovodrun, arguments)
        for round_index in range(rounds):
            report.see_cache_state()
            for size in sizes:
                calls = max(5, min(1000, (256 << 20) // size))
                for _, group in conductor.in_turn(round_index):
                    answers = group.ask(
                        "measure", bytes=size, iterations=calls, warm_up=3, in_place=True, pause=0
                    )
                    seconds = max(median(answer["seconds"]) for answer in answers)
                    times[size].setdefault(OURS, []).append(seconds * 1e6)
                for way in WAYS:
                    taken = run_bare(report, program, way, size, calls)
                    if taken is not None:
                        times[size].setdefault(way, []).append(taken)
            print(f"round {round_index + 1} of {rounds} done", flush=True)
    return times


def run_bare(report: Report, program: Path, way: str, size: int, calls: int) -> float | None:
    """Median microseconds of a call, or None, with a note, where that way can't be had."""
    command = [str(program), way, str(size), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == CANNOT_BE_HAD:
        report.note(f"{way} can't be had here: {done.stderr.strip()}")
        return None
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return float(done.stdout)


def tabulate(report: Report, times: Times) -> None:
    """Medians, and within rounds what Horovod takes in relation to each way."""
    columns = [OURS, *WAYS]
    report.table(
        "microseconds per call, 2 ranks, in place",
        [
            {
                "bytes": size_text(size),
                **{name: median(taken[name]) for name in columns if name in taken},
            }
            for size, taken in times.items()
        ],
    )
    report.table(
        "Horovod's time over that of",
        [
            {
                "bytes": size_text(size),
                **{way: paired_ratio(taken[OURS], taken[way]) for way in WAYS if way in taken},
            }
            for size, taken in times.items()
            if OURS in taken
        ],
    )


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser("Horovod's allreduce beside the bare exchange of the same bytes")
    parser.add_argument(
        "--sizes", type=int, nargs="+", metavar="BYTES", help=f"multiples of {SIZE_UNIT}"
    )
    parser.add_argument("--rounds", type=int, help="times that every way has its turn")
    args = parser.parse_args()
    for size in args.sizes or []:
        if size <= 0 or size % SIZE_UNIT:
            parser.error(f"--sizes: {size} is not a positive multiple of {SIZE_UNIT}")
    return args


if __name__ == "__main__":
    main()
