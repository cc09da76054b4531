"""Runs all benchmarks one after the other: `python benchmarks [--quick] [--results FOLDER]`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent

# The file name of the results, the script, and its extra options.
RUNS: list[tuple[str, str, list[str]]] = [
    ("latency", "latency.py", []),
    ("allreduce", "allreduce.py", []),
    ("allreduce-4-ranks", "allreduce.py", ["--ranks", "4"]),
    ("bare-exchange", "bare_exchange.py", []),
    ("allreduce-hosts", "allreduce.py", ["--hosts"]),
    ("training", "training.py", []),
    ("launch", "launch.py", []),
    ("rendezvous", "rendezvous.py", []),
    ("memory", "memory.py", []),
    ("idle", "idle.py", []),
    ("overhead", "overhead.py", []),
    ("scaling-model", "scaling_model.py", []),
    ("autotune", "autotune.py", ["--samples", "8"]),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="rough figures in a few minutes")
    parser.add_argument(
        "--results", type=Path, default=FOLDER / "results", help="folder for the JSON files"
    )
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, script, extra in RUNS:
        command = [
            sys.executable,
            str(FOLDER / script),
            "--json",
            str(args.results / f"{name}.json"),
        ]
        command += extra
        if args.quick:
            command.append("--quick")
        print(f"\n$ {' '.join(command[1:])}\n", flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"could not be measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
