"""The model behind `horovodrun predict`, beside what is measured over links of limited rate.

    python benchmarks/scaling_model.py               needs root: hosts are network namespaces
    python benchmarks/scaling_model.py --published   the published case, by calculation alone

Nothing is fitted. The model is told what one TCP connection carries and how long a small message takes
between the namespaces, and what the ranks of one host reach among themselves; all three are measured first.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from between_hosts import LAUNCHER, Rig, stream_rate, why_not
from groups import Command, Group, script
from harness import Report, Target, argument_parser, median, new_report
from horovod.runner.scaling.cluster import EXCHANGES, Cluster
from horovod.runner.scaling.model import Options, Prediction, play, predict
from horovod.runner.scaling.networks import NETWORKS, program_of
from horovod.runner.scaling.predict_command import LINK_EFFICIENCY
from horovod.runner.scaling.programs import Program, Workload, from_ready_times
from horovod.runner.scaling.trace import read_workload

MIB = 1 << 20
LAYOUTS = ((1, 1), (1, 1, 1), (2, 2), (2, 2, 2))  # ranks of each host
RATES = ("500mbit", "1gbit", "2gbit")
SIZES = (8 * MIB, 32 * MIB, 64 * MIB)
QUICK_RATES, QUICK_SIZES = ("1gbit",), (8 * MIB, 32 * MIB)
TENSORS, COMPUTE = (
    8,
    0.15,
)  # gradients of a step; its seconds, a third of them before the first gradient
STEPS, WARM_UP = 5, 2
WORST_ERROR = 0.10
LOCAL_BYTES, LOCAL_CALLS = 4 * MIB, 50
PING_PONGS, STREAMS = 200, 3

# The published case: 128 servers x 4 Pascal GPUs, 25 Gbit/s, batch 64 per GPU (docs/scaling-model.md).
# Images per second of one P100 (TensorFlow's benchmarks of May 2017); ResNet-101's lies half-way, in time per
# image, between those of ResNet-50 and ResNet-152.
IMAGES_PER_SECOND = {
    "inception3": 142.0,
    "resnet101": 2 / (1 / 219 + 1 / 91.8),
    "vgg16": 154.0,
}
PUBLISHED = {"inception3": 0.90, "resnet101": 0.90, "vgg16": 0.68}
BATCH = 64

ECHO = """
import socket
listener = socket.create_server(("", 5002))
print("ready", flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while piece := connection.recv(64): connection.sendall(piece)
"""
PING = """
import socket, statistics, sys, time
connection = socket.create_connection((sys.argv[1], 5002))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(int(sys.argv[2])):
    start = time.perf_counter()
    connection.sendall(b"x" * 64)
    connection.recv(64)
    times.append(time.perf_counter() - start)
print(statistics.median(times) / 2)
"""


def main() -> None:
    parser = argument_parser("Predicted beside measured step times")
    parser.add_argument(
        "--published", action="store_true", help="only calculate the published case"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="also draw both; needs matplotlib")
    args = parser.parse_args()
    report = new_report("scaling_model", args)
    points = [] if args.published else check(report, args.quick)
    published(report)
    report.finish(args.json)
    if args.plot:
        plot(points, args.plot)


# --- predicted and measured ---------------------------------------------------------------------


def check(report: Report, quick: bool) -> list[dict[str, Any]]:
    """Adds a table of all points, and a target for the worst of them; returns the points."""
    reason = why_not()
    if reason is not None:
        report.note(f"nothing was measured between hosts: {reason}")
        return []
    rates, sizes = (QUICK_RATES, QUICK_SIZES) if quick else (RATES, SIZES)
    points: list[dict[str, Any]] = []
    with Rig(max(map(len, LAYOUTS))) as rig:
        latency = message_time(rig)
        report.note(f"a small message takes {latency * 1e6:.0f} us between two hosts")
        carried = {}
        for rate in rates:
            rig.limit(rate)
            # The link lets no more through; a busy machine only makes it less.
            carried[rate] = max(stream_rate(rig) for _ in range(STREAMS))
            gbits = carried[rate] * 8 / 1e9
            report.note(f"at {rate} one TCP connection carries {gbits:.3f} Gbit/s of data")
        recorded = {size: record(rig, size) for size in sizes}
        for layout in LAYOUTS:
            local = local_rate(rig, layout)
            if layout[0] > 1:
                report.note(
                    f"while {len(layout)} hosts add up at the same time, a rank sends "
                    f"{local / 1e9:.2f} GB/s to another of its host"
                )
            with Group("Horovod", [job(rig.hosts, layout, rig)], sum(layout)) as group:
                for rate, size in itertools.product(rates, sizes):
                    rig.limit(rate)
                    hosts, ranks = len(layout), layout[0]
                    cluster = Cluster(hosts, ranks, carried[rate], latency, local, latency)
                    points.append(point(group, cluster, rate, size, recorded[size]))
                    print(".", end="", flush=True)
    report.table("predicted and measured", points)
    for column in ("error, %", "with timeline, %"):
        worst = max(abs(p[column]) for p in points) / 100
        claim = f"greatest of {len(points)} points: {column.removesuffix(', %')}"
        report.targets.append(Target(claim, worst, WORST_ERROR, at_most=True))
    return points


def point(
    group: Group, cluster: Cluster, rate: str, size: int, recorded: Workload
) -> dict[str, Any]:
    """One row: a step with gradients of `size` bytes altogether."""
    answers = group.ask("measure", **request(size), steps=STEPS, warm_up=WARM_UP)
    per_step = zip(*(answer["seconds"] for answer in answers), strict=True)
    measured = median([sum(ranks) / len(ranks) for ranks in per_step])
    exchange = EXCHANGES["hierarchical"]
    tensors = [(str(i), *tensor) for i, tensor in enumerate(request(size)["tensors"])]
    predicted = play(from_ready_times(tensors, COMPUTE), cluster, exchange).step
    from_timeline = predict(recorded.programs, cluster, exchange).step
    return {
        "hosts x ranks": f"{cluster.hosts} x {cluster.ranks}",
        "link": rate,
        "gradients": f"{size // MIB} MiB",
        "measured, ms": measured * 1e3,
        "predicted, ms": predicted * 1e3,
        "error, %": (predicted / measured - 1) * 100,
        "with timeline, ms": from_timeline * 1e3,
        "with timeline, %": (from_timeline / measured - 1) * 100,
        "efficiency": COMPUTE / measured,
        "predicted": COMPUTE / predicted,
    }


def request(size: int) -> dict[str, Any]:
    """What a rank has to do in a step: a third forward, then a gradient after each equal part."""
    first = COMPUTE / 3
    tensors = [
        (size // TENSORS, first + (COMPUTE - first) * (i + 1) / TENSORS) for i in range(TENSORS)
    ]
    return {"tensors": tensors, "compute": COMPUTE}


def record(rig: Rig, size: int) -> Workload:
    """The steps of one rank alone, out of its timeline."""
    with tempfile.TemporaryDirectory() as folder:
        timeline = Path(folder) / "timeline.json"
        command, variables = job(rig.hosts[:1], (1,), rig)
        variables = {**variables, "HOROVOD_TIMELINE": str(timeline)}
        with Group("timeline", [(command, variables)], 1) as group:
            group.ask("measure", **request(size), steps=3 * STEPS, warm_up=WARM_UP)
        return read_workload([timeline])[0]


def message_time(rig: Rig) -> float:
    """Seconds of a small message between two hosts: half a ping-pong over TCP."""
    echo = rig.start(rig.hosts[1], sys.executable, "-c", ECHO, stdout=subprocess.PIPE)
    assert echo.stdout is not None
    echo.stdout.readline()
    words = rig.argv(
        rig.hosts[0], [sys.executable, "-c", PING, rig.hosts[1].address, str(PING_PONGS)]
    )
    done = subprocess.run(words, capture_output=True, check=True)
    echo.wait()
    return float(done.stdout)


def local_rate(rig: Rig, layout: tuple[int, ...]) -> float:
    """Bytes per second that a rank sends to another of its host, from the time of an allreduce there.

    All hosts do it at the same time, each in a job of its own, because here they share the cores.
    """
    ranks = layout[0]
    if ranks == 1:
        return math.inf
    with contextlib.ExitStack() as stack:
        groups = [
            stack.enter_context(Group(host.name, [job([host], (ranks,), rig)], ranks))
            for host in rig.hosts[: len(layout)]
        ]
        ask = partial(Group.ask, command="reduce", bytes=LOCAL_BYTES, calls=LOCAL_CALLS)
        with ThreadPoolExecutor(len(groups)) as threads:
            answers = [one for answer in threads.map(ask, groups) for one in answer]
    seconds = median([median(answer["seconds"]) for answer in answers])
    return 2 * (ranks - 1) / ranks * LOCAL_BYTES / seconds


def job(hosts: Sequence[Any], layout: tuple[int, ...], rig: Rig) -> Command:
    """The launcher on the first of the hosts; ssh to the others."""
    places = ",".join(f"{host.name}:{slots}" for host, slots in zip(hosts, layout, strict=False))
    worker = script("scaling_model_worker.py")
    words = [*LAUNCHER, *rig.ssh_flags(), "-np", str(sum(layout)), "-H", places, *worker]
    return rig.argv(hosts[0], words), {}


# --- the published case -------------------------------------------------------------------------


def published(report: Report) -> None:
    """Adds the three networks' predicted efficiencies beside the published ones, and what moves them."""
    rows = []
    for name, rate in IMAGES_PER_SECOND.items():
        program = program_of(NETWORKS[name](), BATCH / rate)
        row: dict[str, Any] = {
            "network": name,
            "gradients, MB": program.bytes / 1e6,
            "step alone, ms": program.compute * 1e3,
            "published": PUBLISHED[name],
        }
        row |= {exchange: on_512(program, exchange).efficiency for exchange in EXCHANGES}
        rows.append(row)
    report.table("efficiency on 128 hosts x 4 ranks, 25 Gbit/s, 20 us", rows)
    rows = []
    for what, changed in (
        ("as above", {}),
        ("latency 10 us", {"latency": 10e-6}),
        ("latency 40 us", {"latency": 40e-6}),
        ("75 % of the line rate", {"share": 0.75}),
        ("100 % of the line rate", {"share": 1.0}),
        ("jitter 1 %", {"jitter": 0.01}),
        ("jitter 3 %", {"jitter": 0.03}),
        ("cycle time 3.5 ms", {"cycle": 0.0035}),
        ("cycle time 10 ms", {"cycle": 0.01}),
    ):
        row = {"ring": what}
        for name, rate in IMAGES_PER_SECOND.items():
            program = program_of(NETWORKS[name](), BATCH / rate)
            row[name] = on_512(program, "ring", **changed).efficiency
        rows.append(row)
    rows.append({"ring": "published", **PUBLISHED})
    report.table("what moves the ring's figures", rows)


def on_512(
    program: Program,
    exchange: str,
    latency: float = 20e-6,
    share: float = LINK_EFFICIENCY,
    jitter: float = 0.0,
    cycle: float = 0.005,
) -> Prediction:
    """The published cluster; the threshold was Horovod's default then, the rest is assumed."""
    cluster = Cluster(128, 4, 25e9 / 8 * share, latency, 10e9, 5e-6)
    return predict([program], cluster, EXCHANGES[exchange], Options(64 * MIB, cycle, jitter))


# --- the picture --------------------------------------------------------------------------------


def plot(points: list[dict[str, Any]], file: Path) -> None:
    """Predicted over measured step times, and the published case."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed (`pip install matplotlib`)")
        return
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    kinds = list(dict.fromkeys(point["hosts x ranks"] for point in points))
    for kind, mark in zip(kinds, "os^D", strict=False):
        some = [point for point in points if point["hosts x ranks"] == kind]
        x, y = ([p[column] for p in some] for column in ("measured, ms", "predicted, ms"))
        left.plot(x, y, mark, label=f"{kind} ranks", alpha=0.8)
    if points:
        ends = [100, 1.2 * max(point["measured, ms"] for point in points)]
        left.plot(ends, ends, color="0.5", linewidth=1)
        left.fill_between(
            ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="0.9", zorder=0,
            label="within 10 %",
        )  # fmt: skip
        left.set_xscale("log")
        left.set_yscale("log")
        left.legend()
    left.set_xlabel("step measured, ms")
    left.set_ylabel("step predicted, ms")
    names = list(PUBLISHED)
    series = {"published": [PUBLISHED[name] for name in names]}
    for exchange in EXCHANGES:
        series[f"predicted, {exchange}"] = [
            on_512(program_of(NETWORKS[name](), BATCH / rate), exchange).efficiency
            for name, rate in IMAGES_PER_SECOND.items()
        ]
    for index, (label, values) in enumerate(series.items()):
        places = [place + (index - 1.5) * 0.2 for place in range(len(names))]
        bars = right.bar(places, values, 0.19, label=label)
        right.bar_label(bars, [f"{100 * value:.0f}" for value in values], fontsize=8)
    right.set_xticks(range(len(names)), names)
    right.set_ylim(0, 1.35)
    right.set_ylabel("efficiency, 128 hosts x 4 ranks")
    right.legend(ncols=2, fontsize=8)
    figure.savefig(file, dpi=110)
    print(f"written: {file}")


if __name__ == "__main__":
    main()
