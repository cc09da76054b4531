"""A small world of ranks that run given programs and record what they do, for tests of the reader.

A rank's program is a list of actions. Ranks take turns at random. An operation is executed when all members
of its process set that have not joined have submitted it; the simulation ends when no rank can go on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from horovod.runner.flight_recorder.dump import Dump
from horovod.runner.flight_recorder.reader import parse_dump


@dataclass(frozen=True)
class Call:
    """An operation; `wait`: the caller is blocked until it is done."""

    name: str
    kind: str = "allreduce"
    dtype: str = "float32"
    shape: tuple[int, ...] = (4,)
    op: str = "sum"
    root: int = -1
    process_set: int = 0
    wait: bool = True

    def agrees(self, other: Call) -> bool:
        rows = 1 if self.kind in ("allgather", "alltoall") else 0
        return replace(self, shape=self.shape[rows:], wait=True) == replace(
            other, shape=other.shape[rows:], wait=True
        )


@dataclass(frozen=True)
class Wait:
    """Blocks until the operation of this name is done."""

    name: str


@dataclass(frozen=True)
class Stay:
    """Never comes back from this line of the user's code."""

    place: str = "train.py:10 in load"


@dataclass(frozen=True)
class Die:
    """The process is gone, and leaves no dump."""


Action = Call | Wait | Stay | Die


def start(name: str, **options: Any) -> Call:
    """An asynchronous operation."""
    return Call(name, wait=False, **options)


def join() -> Call:
    return Call("join.noname", kind="join", dtype="", shape=(), op="")


@dataclass(eq=False)
class _Rank:
    rank: int
    program: Sequence[Action]
    at: int = 0
    operations: list[dict[str, Any]] = field(default_factory=list)
    waiting: tuple[int, str, float] | None = None
    flying: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    joined: bool = False
    gone: bool = False
    raised: bool = False
    place: str = ""
    set_serials: dict[int, int] = field(default_factory=dict)


class World:
    def __init__(
        self,
        programs: Sequence[Sequence[Action]],
        *,
        seed: int = 0,
        capacity: int = 2000,
        process_sets: Mapping[int, Sequence[int]] | None = None,
        hosts: Sequence[str] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.ranks = [_Rank(rank, program) for rank, program in enumerate(programs)]
        self.awake = list(self.ranks)
        self.capacity = capacity
        self.hosts = list(hosts or ["a"] * len(programs))
        self.sets = {0: list(range(len(programs))), **(process_sets or {})}
        # Every host's clock starts somewhere else.
        self.clocks = {host: self.random.uniform(0, 1e5) for host in self.hosts}
        self.now = 0.0
        self.responses = 0
        self.calls: dict[tuple[int, str], dict[int, Call]] = {}

    def run(self) -> World:
        while self.awake:
            i = self.random.randrange(len(self.awake))
            rank = self.awake[i]
            if self._can_go_on(rank):
                self.now += self.random.uniform(1e-5, 1e-3)
                self._step(rank)
            else:
                self.awake.pop(i)
        return self

    @staticmethod
    def _can_go_on(rank: _Rank) -> bool:
        blocked = rank.waiting is not None and rank.waiting[:2] in rank.flying
        return not (
            blocked or rank.gone or rank.raised or rank.place or rank.at >= len(rank.program)
        )

    def _clock(self, rank: _Rank) -> float:
        return self.now + self.clocks[self.hosts[rank.rank]]

    def _step(self, rank: _Rank) -> None:
        rank.waiting = None
        action = rank.program[rank.at]
        rank.at += 1
        if isinstance(action, Die):
            rank.gone = True
        elif isinstance(action, Stay):
            rank.place = action.place
        elif isinstance(action, Wait):
            self._wait(rank, action.name)
        else:
            self._submit(rank, action)
            if action.wait:
                self._wait(rank, action.name, action.process_set)

    def _wait(self, rank: _Rank, name: str, process_set: int = 0) -> None:
        if (process_set, name) in rank.flying:
            rank.waiting = (process_set, name, self._clock(rank))

    def _submit(self, rank: _Rank, call: Call) -> None:
        key = call.process_set, call.name
        assert key not in rank.flying, f"{call.name} is in flight on rank {rank.rank}"
        number = rank.set_serials.get(call.process_set, 0)
        rank.set_serials[call.process_set] = number + 1
        record = {
            "serial": len(rank.operations),
            "process_set": call.process_set,
            "set_serial": number,
            "name": call.name,
            "kind": call.kind,
            "dtype": call.dtype,
            "shape": list(call.shape),
            "op": call.op,
            "root": call.root,
            "group": "",
            "bytes": 16,
            "state": "announced",
            "submitted": self._clock(rank),
            "agreed": None,
            "started": None,
            "finished": None,
            "response": None,
        }
        rank.operations.append(record)
        rank.flying[key] = record
        rank.joined = rank.joined or call.kind == "join"
        self.calls.setdefault(key, {})[rank.rank] = call
        self._execute_what_is_complete([key] if call.kind != "join" else list(self.calls))

    def _execute_what_is_complete(self, keys: list[tuple[int, str]]) -> None:
        joined = {rank.rank for rank in self.ranks if rank.joined}
        for key in keys:
            calls = self.calls[key]
            is_join = next(iter(calls.values())).kind == "join"
            members = self.sets[key[0]]
            if all(rank in calls or (rank in joined and not is_join) for rank in members):
                self._finish(key, self.calls.pop(key))
                if is_join:
                    for rank in self.ranks:
                        rank.joined = False

    def _finish(self, key: tuple[int, str], calls: dict[int, Call]) -> None:
        first = calls[min(calls)]
        agree = all(call.agrees(first) for call in calls.values())
        self.responses += 1
        for number in calls:
            rank = self.ranks[number]
            record = rank.flying.pop(key)
            if rank not in self.awake:
                self.awake.append(rank)
            clock = self._clock(rank)
            record |= {"agreed": clock, "finished": clock + 2e-4}
            if agree:
                record |= {"state": "done", "started": clock + 1e-4, "response": self.responses}
            else:
                record |= {"state": "failed", "error": "Mismatched things."}
                rank.raised = True

    def dumps(self, *, reason: str = "stall", seconds_later: float = 10.0) -> dict[int, dict]:
        """What every rank that lives writes, as JSON has it."""
        self.now += seconds_later
        written = {}
        for rank in self.ranks:
            if rank.gone:
                continue
            blocked = []
            if rank.waiting is not None and rank.waiting[:2] in rank.flying:
                blocked = [{"name": rank.waiting[1], "since": rank.waiting[2]}]
            written[rank.rank] = {
                "format": "horovod-flight-recorder",
                "version": 1,
                "rank": rank.rank,
                "size": len(self.ranks),
                "host": self.hosts[rank.rank],
                "hosts": self.hosts,
                "pid": 1000 + rank.rank,
                "reason": reason,
                "text": "",
                "time": 1.764e9 + self.now,
                "monotonic": self._clock(rank),
                "capacity": self.capacity,
                "recorded": len(rank.operations),
                "operations": rank.operations[-self.capacity :],
                "blocked": blocked,
                "stacks": self._stacks(rank),
            }
        return written

    @staticmethod
    def _stacks(rank: _Rank) -> str:
        if not rank.place:
            return ""
        file, _, rest = rank.place.partition(":")
        line, _, function = rest.partition(" in ")
        return (
            'Thread 0x00007f01 (most recent call first):\n  File "/lib/threading.py", line 5 in wait\n\n'
            f'Current thread 0x00007f02 (most recent call first):\n  File "{file}", line {line} in '
            f'{function}\n  File "train.py", line 1 in <module>\n'
        )


def simulate(programs: Sequence[Sequence[Action]], **options: Any) -> dict[int, Dump]:
    """Runs the programs to their ends, or until no rank can go on, and returns the dumps."""
    written = World(programs, **options).run().dumps()
    return {
        rank: parse_dump(json.dumps(content).encode(), f"rank{rank}.json")
        for rank, content in written.items()
    }


def write_all(folder: Path, written: Mapping[int, dict]) -> None:
    """Writes dumps as the recorder does."""
    for rank, content in written.items():
        (folder / f"rank{rank}.json").write_text(json.dumps(content))


# --- programs ---------------------------------------------------------------------------------------

GRADIENTS = tuple(f"allreduce.layer{i}.weight" for i in range(5))


def begin() -> list[Action]:
    """The start that all ranks make: broadcasts of what they begin with."""
    return [
        Call(f"broadcast.layer{i}.weight", kind="broadcast", op="", root=0, wait=i == 4)
        for i in range(5)
    ]


def step(
    shuffle: random.Random | None = None,
    names: Sequence[str] = GRADIENTS,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> list[Action]:
    """One training step: gradients in the order of the backward pass, or any; then wait for all."""
    order = list(reversed(names))
    if shuffle is not None:
        shuffle.shuffle(order)
    sizes = {name: (i + 1, 3) for i, name in enumerate(names)} if shapes is None else shapes
    return [*(start(name, shape=sizes[name]) for name in order), *(Wait(name) for name in names)]


def training(steps: int, seed: int | None = None) -> list[Action]:
    """Broadcasts and `steps` steps; with a seed the order of gradients is that rank's own."""
    shuffle = None if seed is None else random.Random(seed)
    return [*begin(), *(action for _ in range(steps) for action in step(shuffle))]
