"""Writes timelines of simulated jobs whose properties are known: who is late, how long everything takes."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH = 1_764_500_000_000_000
MIB = 1 << 20
WAITS = "\0waits"  # the row of blocked callers, which is called like a tensor may be, too


@dataclass
class Sample:
    """A job in which all ranks do the same; times in microseconds.

    In each step every rank computes forward, then each layer backward; the gradient of a layer is submitted
    when it is there. What all ranks have submitted is executed in order, one response after the other, `fuse`
    tensors each. After the last layer each rank waits for all gradients, then updates its parameters.
    """

    size: int = 4
    steps: int = 20
    hosts: list[str] = field(default_factory=list)  # of each rank; default: two hosts
    forward: float = 5_000
    layers: list[tuple[str, int, float]] = field(  # name, bytes of the gradient, time backward
        default_factory=lambda: [
            ("fc2.weight", 4 * MIB, 2_000),
            ("fc1.weight", 16 * MIB, 6_000),
            ("conv2.weight", 200 * 1024, 4_000),
            ("conv1.weight", 512, 3_000),
        ]
    )
    update: float = 1_000
    fuse: int = 1
    latency: float = 60  # from the last submission to the start of execution
    bandwidth: float = 8_000  # bytes per microsecond
    per_response: float = 40
    data_wait: float = 0  # within each execution
    late: dict[int, float] = field(default_factory=dict)  # rank: how much longer its forward takes
    jitter: float = 0  # the forward of each rank takes up to this much longer
    layer_jitter: float = 0  # each layer takes up to this share longer, on each rank anew
    clock_offsets: dict[int, float] = field(default_factory=dict)
    clock_error: float = 5
    heard_late: dict[int, float] = field(
        default_factory=dict
    )  # when rank 0 hears that a rank is ready
    started: dict[int, int] = field(default_factory=dict)  # rank: begins to record that much later
    waits: bool = True  # whether callers are seen blocked
    cycles: bool = False
    first_step_extra: float = 0
    seed: int = 1
    epoch: int = EPOCH
    open_end: bool = False  # the last step is cut off while ranks wait for `missing`
    missing: int | None = None

    def host_names(self) -> list[str]:
        """The host of each rank."""
        if self.hosts:
            return self.hosts
        return ["a" if 2 * rank < self.size else "b" for rank in range(self.size)]


def showcase(size: int) -> Sample:
    """A job like a small ResNet: of 2 ranks the second is late, of many those of one host."""
    layers = [("fc.weight", 8 * MIB, 3_000.0)]
    for block in (4, 3, 2, 1):
        layers += [
            (f"layer{block}.conv{i}.weight", (4 * MIB >> 2 * (4 - block)) // i, 1_500.0)
            for i in (3, 2, 1)
        ]
        layers.append((f"layer{block}.bn.bias", 1024, 120.0))
    few = size <= 8
    per_host = max(1, size // 2) if few else 8
    late = {1: 8_000.0} if few else {rank: 12_000.0 for rank in range(136, 144) if rank < size}
    if not few:
        late[77] = 5_000.0
    return Sample(
        size=size,
        steps=80 if few else 24,
        hosts=[f"node{rank // per_host:02d}" for rank in range(size)],
        layers=layers,
        fuse=3,
        late=late,
        jitter=4_000,
        layer_jitter=0.6,
        data_wait=60,
    )


class Recorder:
    """One rank's file."""

    def __init__(self, sample: Sample, rank: int) -> None:
        self.rank = rank
        self.offset = sample.clock_offsets.get(rank, 0.0)
        self.start = sample.started.get(rank, 0)
        self.events: list[tuple[float, int, dict[str, Any]]] = []
        self.pids: dict[str, int] = {}
        hosts = sample.host_names()
        self.head = [
            {
                "name": "process_name",
                "ph": "M",
                "pid": 0,
                "args": {
                    "name": "Horovod",
                    "start_time_since_epoch_in_micros": int(
                        sample.epoch + self.start + self.offset
                    ),
                    "rank": rank,
                    "size": sample.size,
                    "host": hosts[rank],
                    "hosts": hosts,
                    "clock_offset_micros": self.offset,
                    "clock_error_micros": 0.0 if rank == 0 else sample.clock_error,
                    "format": 1,
                },
            },
            {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
        ]

    def put(self, time: float, ph: str, name: str, row: str | None, **more: Any) -> None:
        """Notes an event at a true time (that of rank 0's clock)."""
        pid = 0
        if row is not None:
            if row not in self.pids:
                pid = self.pids[row] = len(self.pids) + 1
                for key, args in (
                    ("process_name", {"name": "synchronize" if row == WAITS else row}),
                    ("process_sort_index", {"sort_index": pid}),
                ):
                    meta = {"name": key, "ph": "M", "pid": pid, "args": args}
                    self.events.append((time, len(self.events), meta))
            pid = self.pids[row]
        event = {"name": name, "ph": ph, "ts": round(time - self.start, 3), "pid": pid, **more}
        self.events.append((time, len(self.events), event))

    def lines(self) -> list[str]:
        """The events as lines of JSON, in order of time."""
        ordered = sorted(self.events, key=lambda entry: entry[:2])
        return [json.dumps(event) for event in self.head + [entry[2] for entry in ordered]]


def timeline_text(lines: list[str]) -> str:
    """A file's text from its events."""
    return "[\n" + ",\n".join(lines) + "\n]\n"


def path_of(path: Path, rank: int) -> Path:
    """Where rank `rank` writes, if rank 0 writes to `path`."""
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def write_job(path: Path, sample: Sample, ranks: list[int] | None = None) -> list[Path]:
    """Simulates a job and writes the files of `ranks` (all); returns their paths."""
    recorders = simulate(sample)
    paths = []
    for rank in range(sample.size) if ranks is None else ranks:
        paths.append(path_of(path, rank))
        paths[-1].write_text(timeline_text(recorders[rank].lines()))
    return paths


def simulate(sample: Sample) -> list[Recorder]:
    """Runs the job."""
    rng = random.Random(sample.seed)
    recorders = [Recorder(sample, rank) for rank in range(sample.size)]
    free = [1_000.0] * sample.size  # when each rank begins its step
    response = 0
    for step in range(sample.steps):
        extra = sample.first_step_extra if step == 0 else 0.0
        last = step == sample.steps - 1
        ready: list[list[float]] = []
        for rank in range(sample.size):
            time = free[rank] + sample.forward + sample.late.get(rank, 0.0)
            time += rng.uniform(0, sample.jitter)
            submitted = []
            for _, _, backward in sample.layers:
                time += backward
                if sample.layer_jitter:
                    time += backward * rng.uniform(0, sample.layer_jitter)
                submitted.append(time)
            ready.append(submitted)
        if last and sample.open_end:
            _stall(sample, recorders, ready)
            break
        agreed = max(submitted[0] for submitted in ready) + sample.latency / 2
        for recorder in recorders:
            recorder.put(agreed, "i", "STEP", None, s="p", args={"step": step})
        finished = [0.0] * len(sample.layers)
        engine = 0.0
        for begin in range(0, len(sample.layers), sample.fuse):
            members = list(range(begin, min(begin + sample.fuse, len(sample.layers))))
            complete = [max(ready[r][i] for r in range(sample.size)) for i in members]
            if sample.cycles:
                recorders[0].put(
                    max(complete) + sample.latency / 2, "i", "CYCLE_START", None, s="g"
                )
            execute = max(max(complete) + sample.latency, engine)
            size = sum(sample.layers[i][1] for i in members)
            engine = execute + sample.data_wait + sample.per_response + size / sample.bandwidth
            for i in members:
                finished[i] = engine
            for recorder in recorders:
                for i, known in zip(members, complete, strict=True):
                    ranks = {r: ready[r][i] for r in range(sample.size)}
                    _operation(
                        sample, recorder, i, ranks, known, (execute, engine), len(members), response
                    )
            response += 1
        for rank, recorder in enumerate(recorders):
            free[rank] = max(ready[rank][-1], max(finished)) + sample.update + extra
            if sample.waits and max(finished) > ready[rank][-1]:
                _waits(sample, recorder, ready[rank][-1], finished)
    return recorders


def _operation(
    sample: Sample,
    recorder: Recorder,
    layer: int,
    ready: dict[int, float],
    complete: float,
    executed: tuple[float, float],
    fused: int,
    response: int,
) -> None:
    name, size, _ = sample.layers[layer]
    mine = recorder.rank
    known = {mine: ready[mine]}
    if mine == 0:
        known = {r: time + sample.heard_late.get(r, 0.0) for r, time in ready.items()}
    put = recorder.put
    put(min(known.values()), "B", "NEGOTIATE_ALLREDUCE", name)
    for rank, time in sorted(known.items(), key=lambda item: item[1]):
        put(time, "X", str(rank), name, dur=0)
    agreed = complete + sample.latency / 2
    put(agreed, "E", "NEGOTIATE_ALLREDUCE", name)
    begin, end = executed
    put(agreed, "B", "ALLREDUCE", name)
    put(agreed, "B", "QUEUE", name)
    put(begin, "E", "QUEUE", name)
    put(begin, "B", "GLOO_ALLREDUCE", name)
    if sample.data_wait:
        put(begin, "B", "WAIT_FOR_DATA", name)
        put(begin + sample.data_wait, "E", "WAIT_FOR_DATA", name)
    put(end, "E", "GLOO_ALLREDUCE", name)
    shape = f"[{size // 4}]"
    args = {"dtype": "float32", "shape": shape, "bytes": size, "fused": fused, "response": response}
    put(end, "E", "ALLREDUCE", name, args=args)


def _waits(sample: Sample, recorder: Recorder, begin: float, finished: list[float]) -> None:
    for (name, _, _), end in zip(sample.layers, finished, strict=True):
        if end > begin:
            recorder.put(begin, "B", "WAIT", WAITS, tid=1, args={"tensor": name})
            recorder.put(end, "E", "WAIT", WAITS, tid=1)
            begin = end


def _stall(sample: Sample, recorders: list[Recorder], ready: list[list[float]]) -> None:
    """All but rank `missing` submit and wait; the recording ends while they do."""
    for rank, recorder in enumerate(recorders):
        if rank == sample.missing:
            continue
        for i, (name, _, _) in enumerate(sample.layers):
            known = {
                r: ready[r][i]
                for r in range(sample.size)
                if r != sample.missing and (rank == 0 or r == rank)
            }
            if not known:
                continue
            recorder.put(min(known.values()), "B", "NEGOTIATE_ALLREDUCE", name)
            for r, time in sorted(known.items(), key=lambda item: item[1]):
                recorder.put(time, "X", str(r), name, dur=0)
        if sample.waits:
            args = {"tensor": sample.layers[0][0]}
            recorder.put(ready[rank][-1], "B", "WAIT", WAITS, tid=1, args=args)


def split(recorder: Recorder, moment: float) -> tuple[str, str]:
    """What the writer leaves if its file is full at `moment`: open rows are closed and opened anew."""
    head = [json.loads(line) for line in recorder.lines()[:2]]
    later = json.loads(json.dumps(head))
    later[0]["args"]["start_time_since_epoch_in_micros"] += int(moment)
    files: list[list[dict[str, Any]]] = [head, later]
    stacks: dict[Any, list[dict[str, Any]]] = {}
    meta: list[dict[str, Any]] = []
    turned = False
    for line in recorder.lines()[2:]:
        event = json.loads(line)
        if event["ph"] == "M":
            meta.append(event)
        elif event["ts"] >= moment and not turned:
            turned = True
            files[1] += meta
            for stack in stacks.values():
                files[0] += [
                    {k: v for k, v in b.items() if k != "args"} | {"ph": "E", "ts": moment}
                    for b in reversed(stack)
                ]
                files[1] += [{**b, "ts": 0.0} for b in stack]
        if turned and "ts" in event:
            event["ts"] = round(event["ts"] - moment, 3)
        files[turned].append(event)
        stack = stacks.setdefault((event["pid"], event.get("tid")), [])
        if event["ph"] == "B":
            stack.append(event)
        elif event["ph"] == "E":
            stack.pop()
    first, second = (timeline_text([json.dumps(e) for e in events]) for events in files)
    return first, second
