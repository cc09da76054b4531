"""Throughput from the timeline of a job: how fast its STEP marks follow each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from horovod.runner.scaling.throughput import WARM_UP_SHARE, Throughput

MICRO = 1e-6
FEWEST_MARKS = 4


def read_marks(path: Path) -> list[float]:
    """Seconds of the STEP marks in rank 0's timeline, and in the one rotated away before it.

    One event stands on each line, so a file that is cut off still has its marks.

    Raises:
        OSError: the file can't be read.
    """
    marks: list[float] = []
    rotated = path.with_name(path.name + ".1")
    for part in (rotated, path):
        if part is rotated and not part.exists():
            continue
        begin = 0.0
        with part.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if '"process_name"' in line and "start_time_since_epoch" in line:
                    begin = _start(line)
                elif '"STEP"' in line:
                    event = _event(line)
                    stamp = event.get("ts")
                    if event.get("name") == "STEP" and isinstance(stamp, int | float):
                        marks.append(begin + stamp * MICRO)
    return marks


def throughput_of_marks(marks: Sequence[float], ranks: int) -> Throughput | None:
    """Steps per second of all ranks: the median of the intervals, without the first quarter.

    The median, because between some steps there is an evaluation or a checkpoint.
    """
    if len(marks) < FEWEST_MARKS:
        return None
    intervals = [b - a for a, b in pairwise(marks)]
    usual = median(intervals[int(len(intervals) * WARM_UP_SHARE) :])
    if usual <= 0:
        return None
    return Throughput(ranks / usual, "steps", f"{len(marks)} step marks x {ranks} ranks")


def _start(line: str) -> float:
    arguments = _event(line).get("args")
    start = arguments.get("start_time_since_epoch_in_micros") if isinstance(arguments, dict) else 0
    return start * MICRO if isinstance(start, int | float) else 0.0


def _event(line: str) -> dict[str, object]:
    try:
        event = json.loads(line.strip().lstrip("[").rstrip("],"))
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
