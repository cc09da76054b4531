"""Allreduce between hosts on a link of limited rate: what `allreduce.py --hosts` measures.

The hosts are network namespaces of this machine on one switch (tests/integration/hosts_rig.py), each of which
can send at the given rate. Needs root.

The bound: in a ring of N hosts each sends 2(N-1)/N of the tensor, whatever the number of its ranks, if they
have added up on the host before. The rate is what one TCP connection carries there.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

from groups import Command, Conductor, Group, script
from harness import Report, Target, median, size_text

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "integration"))
from hosts_rig import LAUNCHER, Rig, why_not

LAYOUTS: tuple[tuple[int, ...], ...] = ((1, 1), (1, 1, 1), (2, 2))  # ranks of each host
SIZES, QUICK_SIZES = [1 << 20, 16 << 20, 64 << 20], [16 << 20]
TARGET, TARGET_BYTES = 0.95, 64 << 20
OURS, GLOO = "Horovod", "torch-Gloo"
STREAM_BYTES = 64 << 20

RECEIVE = """
import socket, sys, time
listener = socket.create_server(("", 5001))
print("ready", flush=True)
connection, _ = listener.accept()
connection.recv(1 << 20)
start, count = time.perf_counter(), 0
while piece := connection.recv(1 << 20): count += len(piece)
print(count / (time.perf_counter() - start), flush=True)
"""
SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 5001))
for _ in range(int(sys.argv[2]) >> 20): connection.sendall(bytes(1 << 20))
"""


def measure_between_hosts(report: Report, rate: str, quick: bool) -> None:
    """Adds a table and targets for every layout."""
    reason = why_not()
    if reason is not None:
        report.note(f"nothing was measured between hosts: {reason}")
        return
    with Rig(max(map(len, LAYOUTS))) as rig:
        rig.limit(rate)
        carried = stream_rate(rig)
        report.note(f"one TCP connection carries {carried * 8 / 1e9:.3f} Gbit/s of data")
        for layout in LAYOUTS:
            measure_layout(report, rig, layout, carried, quick)


def stream_rate(rig: Rig) -> float:
    """Bytes per second of one TCP connection between two of the hosts."""
    receiver = rig.start(rig.hosts[1], sys.executable, "-c", RECEIVE, stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    receiver.stdout.readline()
    words = (rig.hosts[1].address, str(STREAM_BYTES))
    rig.start(rig.hosts[0], sys.executable, "-c", SEND, *words).wait()
    rate = float(receiver.stdout.readline())
    receiver.wait()
    return rate


def measure_layout(
    report: Report, rig: Rig, layout: tuple[int, ...], carried: float, quick: bool
) -> None:
    """The medians of both peers at all sizes, beside the bound."""
    name = f"{len(layout)} hosts, {layout[0]} rank(s) each"
    ranks = sum(layout)
    rounds = 1 if quick else 3
    seconds: dict[int, dict[str, list[float]]] = {}
    with Conductor(report.note) as conductor:
        conductor.add(OURS, ranks, lambda _: [horovodrun(rig, layout)])
        conductor.add(GLOO, ranks, lambda _: gloo(rig, layout))
        for round_index, size in itertools.product(range(rounds), QUICK_SIZES if quick else SIZES):
            for peer, group in conductor.in_turn(round_index):
                times = seconds.setdefault(size, {}).setdefault(peer, [])
                times.append(one_call(group, size, 3 if size > 1 << 20 else 20))
    rows: list[dict[str, Any]] = []
    for size, peers in seconds.items():
        bound = 2 * (len(layout) - 1) / len(layout) * size / carried
        row: dict[str, Any] = {"bytes": size_text(size), "bound, ms": bound * 1e3}
        for peer, times in peers.items():
            row[f"{peer}, ms"] = median(times) * 1e3
            row[f"{peer}, share of the bound"] = bound / median(times)
        rows.append(row)
        if size == TARGET_BYTES and OURS in peers:
            claim = f"{name}, {size_text(size)}: share of what the link allows"
            share = bound / median(peers[OURS])
            report.targets.append(Target(claim, share, TARGET, at_most=False))
    report.table(name, rows)


def one_call(group: Group, size: int, iterations: int) -> float:
    """Seconds of a call: the median over calls of the mean over ranks."""
    answers = group.ask(
        "measure", bytes=size, iterations=iterations, warm_up=1, in_place=True, pause=0
    )
    per_call = zip(*(answer["seconds"] for answer in answers), strict=True)
    return median([sum(ranks) / len(ranks) for ranks in per_call])


def horovodrun(rig: Rig, layout: tuple[int, ...]) -> Command:
    """The launcher on the first host; ssh to the others."""
    hosts = ",".join(f"{host.name}:{slots}" for host, slots in zip(rig.hosts, layout, strict=False))
    worker = script("collective_worker.py", "horovod-torch")
    words = [*LAUNCHER, *rig.ssh_flags(), "-np", str(sum(layout)), "-H", hosts, *worker]
    return rig.argv(rig.hosts[0], words), {}


def gloo(rig: Rig, layout: tuple[int, ...]) -> list[Command]:
    """One process per rank on its host; they meet through a file."""
    commands: list[Command] = []
    places = [host for host, count in zip(rig.hosts, layout, strict=False) for _ in range(count)]
    for rank, host in enumerate(places):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "BENCH_GLOO": "{folder}/gloo",
            "GLOO_SOCKET_IFNAME": host.interface,
        }
        commands.append((rig.argv(host, script("collective_worker.py", "torch-gloo")), variables))
    return commands
