"""How long simulated ranks take to meet at the launcher's store: connect, prove the key, exchange 400 bytes.

The store runs here as in horovodrun. The ranks are threads of a few processes, each with the client that a
worker uses.
"""

from __future__ import annotations

import argparse
import itertools
import secrets
import subprocess
import sys
import time

from harness import Report, Target, argument_parser, median, new_report
from horovod.runner.store import Store

RANK_COUNTS, QUICK_RANK_COUNTS = [16, 128, 512, 1024], [16, 256]
TARGET_RANKS, TARGET_SECONDS = 1024, 20.0
PROCESSES = 8
BLOB_BYTES = 400  # what a rank says of itself is about as long

CLIENTS = f"""
import sys, threading
from horovod.common.rendezvous import RendezvousClient
port, size, first, count, key = *map(int, sys.argv[1:5]), bytes.fromhex(sys.stdin.readline())
failed = []
def rank(number):
    try:
        with RendezvousClient("127.0.0.1", port, key, 60) as client:
            blobs = client.exchange("init/0", number, size, bytes({BLOB_BYTES}), 60)
            assert len(blobs) == size
    except Exception as error:
        failed.append(error)
threads = [threading.Thread(target=rank, args=(first + i,)) for i in range(count)]
print("ready", flush=True)
sys.stdin.readline()
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(f"{{len(failed)}} failed, the first with {{failed[0]!r}}" if failed else 0)
"""


def main() -> None:
    args = parse_arguments()
    report = new_report("rendezvous", args)
    counts = args.ranks or (QUICK_RANK_COUNTS if args.quick else RANK_COUNTS)
    rounds = 1 if args.quick else 3
    medians = {}
    for size in counts:
        medians[size] = median([join(size) for _ in range(rounds)])
        print(f"{size} ranks: {medians[size]:.2f} s", flush=True)
    report.table(
        f"seconds until all ranks have met, median of {rounds}",
        [{"ranks": size, "seconds": seconds} for size, seconds in medians.items()],
    )
    add_target(report, medians)
    report.finish(args.json)


def add_target(report: Report, medians: dict[int, float]) -> None:
    """The claim is about one size."""
    if TARGET_RANKS in medians:
        claim = f"{TARGET_RANKS} ranks join"
        seconds = medians[TARGET_RANKS]
        report.targets.append(Target(claim, seconds, TARGET_SECONDS, at_most=True, unit="s"))


def join(size: int) -> float:
    """Seconds from the start of the first client to the end of the last."""
    key = secrets.token_bytes(32)
    store = Store(key, print)
    store.start()
    bounds = [size * i // PROCESSES for i in range(PROCESSES + 1)]
    processes = []
    try:
        for first, end in itertools.pairwise(bounds):
            words = map(str, (store.port, size, first, end - first))
            process = subprocess.Popen(
                [sys.executable, "-c", CLIENTS, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(key.hex() + "\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        started = time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        codes = [process.wait(120) for process in processes]
        seconds = time.perf_counter() - started
    finally:
        for process in processes:
            process.kill()
            process.wait()
        store.stop()
    if any(codes):
        raise SystemExit("some ranks did not join, see above")
    return seconds


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", metavar="N", help="numbers of ranks")
    return parser.parse_args()


if __name__ == "__main__":
    main()
