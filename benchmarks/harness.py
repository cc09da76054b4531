"""What all benchmarks share: options, tables, targets, machine facts, and the JSON report."""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
HOROVODRUN = Path(sys.executable).with_name("horovodrun")

# Round trip of one cache line between two cores. Below it they share a last-level cache: about
# 90 ns there, about 300 ns where the line crosses between caches.
SHARED_CACHE_BELOW_NS = 200.0


@dataclass(frozen=True)
class Target:
    """One claim and what was measured for it. ``at_most`` tells which side of the limit is good."""

    claim: str
    measured: float
    limit: float
    at_most: bool
    unit: str = ""

    @property
    def ratio(self) -> float:
        """1.0 or more where the target is met; 2.0 is twice as good as asked."""
        if not self.at_most:
            return self.measured / self.limit
        return self.limit / self.measured if self.measured > 0 else float("inf")

    @property
    def is_met(self) -> bool:
        """Whether the measured value is on the good side of the limit."""
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit


@dataclass
class Report:
    """Everything one run of a benchmark found; prints itself and becomes the JSON file."""

    benchmark: str
    options: dict[str, Any]
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cache_states: list[float | None] = field(default_factory=list)

    def table(self, title: str, rows: Sequence[dict[str, Any]]) -> None:
        """Adds a table and prints it."""
        self.tables[title] = list(rows)
        print(f"\n{title}\n\n{markdown(rows)}", flush=True)

    def note(self, text: str) -> None:
        """Adds a sentence that the reader of the figures needs, and prints it."""
        if text not in self.notes:
            self.notes.append(text)
            print(text, flush=True)

    def see_cache_state(self) -> None:
        """Measures the cache state now; call it once per round."""
        self.cache_states.append(cache_line_round_trip())

    def finish(self, file: Path | None) -> None:
        """Prints cache states and targets, and writes the JSON file if one was asked for."""
        if self.cache_states:
            print(f"\ncache state in each round: {describe_cache_states(self.cache_states)}")
        if self.targets:
            print(f"\nagainst the targets\n\n{markdown([target_row(t) for t in self.targets])}")
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(self.as_json(), indent=1) + "\n")
            print(f"\nwritten: {file}")

    def as_json(self) -> dict[str, Any]:
        """All figures, the command, and the machine they were measured on."""
        return {
            "benchmark": self.benchmark,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine_facts(),
            "cache_line_round_trip_ns": self.cache_states,
            "options": {name: str(value) for name, value in self.options.items()},
            "notes": self.notes,
            "tables": self.tables,
            "targets": [asdict(t) | {"ratio": t.ratio, "is_met": t.is_met} for t in self.targets],
        }


def argument_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer sizes and rounds, rough figures"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    return parser


def new_report(benchmark: str, args: argparse.Namespace) -> Report:
    """A report for the parsed options; prints the heading and the machine."""
    # A benchmark that is told to stop must end the workers that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    facts = machine_facts()
    print(f"# {benchmark}\n\n{'; '.join(f'{k} {v}' for k, v in facts.items())}", flush=True)
    return Report(benchmark, vars(args))


# --- numbers ------------------------------------------------------------------------------------


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which ``percent`` of the sorted values lie (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile of no values was asked for")
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of ``ours / theirs`` within each round: the machine changes between rounds."""
    return median([a / b for a, b in zip(ours, theirs, strict=True)])


def size_text(count: int) -> str:
    """4, 64 Ki, 256 Mi: bytes with a binary prefix."""
    for shift, prefix in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {prefix}B"
    return f"{count} B"


def number_text(value: Any) -> str:
    """Three significant digits for floats; everything else as it is."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as an aligned Markdown table; columns are the keys of the first row."""
    if not rows:
        return "(no rows)"
    cells = [list(rows[0])] + [[number_text(row.get(key)) for key in rows[0]] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def target_row(target: Target) -> dict[str, Any]:
    """One line of the table of targets."""
    unit = f" {target.unit}" if target.unit else ""
    return {
        "what": target.claim,
        "measured": f"{number_text(target.measured)}{unit}",
        "target": f"{'<=' if target.at_most else '>='} {number_text(target.limit)}{unit}",
        "ratio to target": target.ratio,
        "met": "yes" if target.is_met else "no",
    }


# --- the machine --------------------------------------------------------------------------------


def machine_facts() -> dict[str, str]:
    """Processor, cores, and the versions that matter."""
    return {
        "CPU": processor_name(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "Python": platform.python_version(),
        **{name: installed_version(name) for name in ("horovod", "torch", "numpy")},
    }


def processor_name() -> str:
    """The model name of the first core."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def installed_version(package: str) -> str:
    """The version, or a word for its absence."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def cache_line_round_trip() -> float | None:
    """Nanoseconds a cache line needs from core 0 to core 1 and back; None where it can't be told."""
    program = ping_pong_program()
    if program is None:
        return None
    result = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    return float(result.stdout) if result.returncode == 0 else None


@functools.cache
def ping_pong_program() -> Path | None:
    """The built ``ping_pong.cpp``, or None where there is no compiler or only one core."""
    if len(os.sched_getaffinity(0)) < 2:
        return None
    try:
        return compile_program("ping_pong.cpp", "-O2", "-pthread")
    except CompilerFailed as error:
        print(f"the cache state stays unknown: {error}", file=sys.stderr)
        return None


class CompilerFailed(Exception):
    """There is no compiler, or it refused; the text says which and why."""


def compile_program(source: str, *options: str) -> Path:
    """Compiles a C++ file of this folder; the program is gone when the benchmark ends.

    Raises:
        CompilerFailed: it could not be compiled.
    """
    folder = Path(tempfile.mkdtemp(prefix="horovod-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = folder / Path(source).stem
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", *options, str(FOLDER / source), "-o", str(program)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise CompilerFailed(f"{compiler} failed: {error}") from error
    except subprocess.CalledProcessError as error:
        raise CompilerFailed(f"{compiler} failed: {error.stderr}") from error
    return program


def cache_state_name(round_trip: float | None) -> str:
    """`shared` or `apart`: whether the cores share a last-level cache, judged by that; or `unknown`."""
    if round_trip is None:
        return "unknown"
    return "shared" if round_trip < SHARED_CACHE_BELOW_NS else "apart"


def describe_cache_states(states: Sequence[float | None]) -> str:
    """`312 ns (apart), 95 ns (shared)`: what each round ran in."""
    return ", ".join(
        "unknown" if s is None else f"{s:.0f} ns ({cache_state_name(s)})" for s in states
    )
