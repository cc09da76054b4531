"""What one rank does in a step, as the prediction sees it: compute, hand in a tensor, wait.

The source may be a timeline (trace.py), a network's architecture (networks.py) or a JSON file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT, VERSION = "horovod-model", 1


class InputError(ValueError):
    """A file or an option that makes no sense; the text says what was expected and what came."""


@dataclass(frozen=True)
class Submit:
    """A tensor of `size` bytes is ready and handed in, after `gap` seconds of computing."""

    gap: float
    name: str
    size: float


@dataclass(frozen=True)
class Wait:
    """After `gap` seconds of computing the rank waits for a tensor, or for all that it handed in."""

    gap: float
    name: str | None = None


Action = Submit | Wait


@dataclass(frozen=True)
class Program:
    """One step of one rank. `tail`: seconds of computing between the last action and the next step."""

    actions: tuple[Action, ...]
    tail: float = 0.0

    @property
    def compute(self) -> float:
        """Seconds of a step in which nothing has to be waited for."""
        return sum(action.gap for action in self.actions) + self.tail

    @property
    def bytes(self) -> float:
        """Bytes that every rank hands in per step."""
        return sum(action.size for action in self.actions if isinstance(action, Submit))

    @property
    def tensors(self) -> int:
        """How many tensors a step has."""
        return sum(isinstance(action, Submit) for action in self.actions)


@dataclass(frozen=True)
class Workload:
    """What is predicted: one program, or several recorded steps of which the median counts."""

    name: str
    source: str
    programs: tuple[Program, ...]
    threshold: float | None = None  # bytes; what the job that was recorded used, if known


def from_ready_times(
    tensors: Sequence[tuple[str, float, float]], compute: float, wait: float | None = None
) -> Program:
    """The program of a step: `tensors` are (name, bytes, seconds from the step's start).

    Of its `compute` seconds, those before `wait` (by default all) lie before the rank waits for all
    tensors; it never waits before the last one is ready.
    """
    actions: list[Action] = []
    clock = 0.0
    for name, size, ready in sorted(tensors, key=lambda tensor: tensor[2]):
        actions.append(Submit(ready - clock, name, size))
        clock = ready
    wait = max(clock, compute if wait is None else wait)
    actions.append(Wait(wait - clock))
    return Program(tuple(actions), max(0.0, compute - wait))


def read_model(path: Path) -> Workload:
    """Reads the JSON description of a model (docs/scaling-model.md shows one).

    Raises:
        InputError: it can't be read, is no JSON, or lacks something.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start}: expected UTF-8 text") from None
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: {_position(error)}: expected JSON, {_reason(error)}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(
            f'{path}: expected an object with "format": "{FORMAT}"; a timeline is given without '
            "--from-json"
        )
    if data.get("version") != VERSION:
        raise InputError(f"{path}: expected version {VERSION}, found {data.get('version')!r}")
    compute = _number(data.get("compute_seconds"), f"{path}: compute_seconds")
    entries = data.get("tensors")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path}: tensors: expected a list with at least one tensor")
    tensors = [_tensor(entry, f"{path}: tensors[{i}]") for i, entry in enumerate(entries)]
    wait = compute
    if "wait_seconds" in data:
        wait = _number(data["wait_seconds"], f"{path}: wait_seconds")
    late = max(tensors, key=lambda tensor: tensor[2])
    if not late[2] <= wait <= compute:
        raise InputError(
            f"{path}: expected the last tensor before wait_seconds and that not after "
            f"compute_seconds, found '{late[0]}' ready at {late[2]} s, wait_seconds {wait}, "
            f"compute_seconds {compute}"
        )
    name = str(data.get("name", path.stem))
    return Workload(name, str(path), (from_ready_times(tensors, compute, wait),))


def model_json(workload: Workload) -> str:
    """The text that `read_model` reads, of the step with the median compute time.

    Of its waits only the last one is kept, in which the rank waits for all tensors.
    """
    programs = sorted(workload.programs, key=lambda program: program.compute)
    program = programs[len(programs) // 2]
    clock, wait, tensors = 0.0, 0.0, []
    for action in program.actions:
        clock += action.gap
        if isinstance(action, Submit):
            tensors.append({"name": action.name, "bytes": action.size, "ready_seconds": clock})
        wait = clock
    document = {
        "format": FORMAT,
        "version": VERSION,
        "name": workload.name,
        "compute_seconds": wait + program.tail,
        "wait_seconds": wait,
        "tensors": tensors,
    }
    return json.dumps(document, indent=1) + "\n"


def _tensor(entry: Any, where: str) -> tuple[str, float, float]:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected an object, found {type(entry).__name__}")
    size = _number(entry.get("bytes"), f"{where}: bytes")
    ready = _number(entry.get("ready_seconds"), f"{where}: ready_seconds")
    return str(entry.get("name", where.rpartition(" ")[2])), size, ready


def _number(value: Any, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        found = "nothing" if value is None else repr(value)
        raise InputError(f"{where}: expected a number from 0 up, found {found}")
    return float(value)


def _position(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}"
    return "nested too deeply"


def _reason(error: Exception) -> str:
    return error.msg[:1].lower() + error.msg[1:] if isinstance(error, json.JSONDecodeError) else ""
