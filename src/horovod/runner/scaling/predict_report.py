"""What `horovodrun predict` says: tables and a sentence for people, JSON for machines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median, pstdev
from typing import Any

from horovod.runner.scaling import model
from horovod.runner.scaling.cluster import Cluster
from horovod.runner.scaling.model import Options, Prediction
from horovod.runner.scaling.programs import Workload
from horovod.runner.scaling.tables import text_table
from horovod.runner.scaling.units import number_text, rate_text, size_text, time_text

Predictions = Mapping[str, Sequence[tuple[Cluster, Prediction]]]
ADVICE = {
    model.COMPUTE: "the exchange is hidden behind the computing; nothing to gain there",
    model.BANDWIDTH: "send less (compression to 16 bits halves it), send less often "
    "(backward_passes_per_step), raise the batch per rank, or get a faster link",
    model.LATENCY: "make fewer, larger messages: a greater HOROVOD_FUSION_THRESHOLD or "
    "HOROVOD_CYCLE_TIME, hierarchical exchange, or a network with less latency",
    model.LOCAL: "the ranks of a host are slow to reach each other: fewer ranks per host, or a faster "
    "way between them",
    model.NEGOTIATION: "agreeing takes longer than the data: a smaller HOROVOD_CYCLE_TIME, or fewer "
    "tensors",
    model.STRAGGLERS: "all wait for the slowest: find out why the ranks' step times differ",
}


def as_text(
    workload: Workload, predictions: Predictions, options: Options, link_efficiency: float
) -> str:
    """The whole report."""
    some = next(iter(predictions.values()))[0][0]
    parts = [_workload_text(workload), _cluster_text(some, options, link_efficiency)]
    parts += [f"\n{name}\n{_table(rows)}" for name, rows in predictions.items()]
    return "\n".join([*parts, "", _verdict(predictions)])


def as_json(
    workload: Workload, predictions: Predictions, options: Options, link_efficiency: float
) -> dict[str, Any]:
    """All figures; times in seconds, rates in bytes per second of payload."""
    return {
        "format": "horovod-prediction",
        "version": 1,
        "workload": {
            "name": workload.name,
            "source": workload.source,
            "steps": len(workload.programs),
            "compute_seconds": median(p.compute for p in workload.programs),
            "bytes": workload.programs[0].bytes,
            "tensors": workload.programs[0].tensors,
        },
        "options": {**asdict(options), "link_efficiency": link_efficiency},
        "predictions": {
            name: [
                {
                    "hosts": cluster.hosts,
                    "ranks": cluster.size,
                    "step_seconds": one.step,
                    "efficiency": one.efficiency,
                    "speed_up": one.efficiency * cluster.size,
                    "exchange_seconds": one.exchange,
                    "responses": one.responses,
                    "limited_by": one.limit,
                }
                for cluster, one in rows
            ]
            for name, rows in predictions.items()
        },
    }


def _workload_text(workload: Workload) -> str:
    programs = workload.programs
    times = [program.compute for program in programs]
    some = programs[0]
    text = (
        f"{workload.name} ({workload.source}): {some.tensors} tensor{'' if some.tensors == 1 else 's'}, "
        f"{size_text(some.bytes)} per step; "
        f"a rank alone computes {time_text(median(times))} per step"
    )
    if len(times) > 2 and median(times) > 0:
        spread = pstdev(times) / median(times)
        text += f", +-{number_text(spread * 100)} % from step to step"
    return text


def _cluster_text(cluster: Cluster, options: Options, link_efficiency: float) -> str:
    plural = "" if cluster.ranks == 1 else "s"
    words = [f"{cluster.ranks} rank{plural} per host"]
    if cluster.bandwidth != float("inf"):
        words.append(
            f"{rate_text(cluster.bandwidth / link_efficiency)} per host, of which "
            f"{number_text(link_efficiency * 100)} % is payload"
        )
        words.append(f"latency {time_text(cluster.latency)}")
    if cluster.ranks > 1:
        words.append(
            f"within a host {size_text(cluster.local_bandwidth)}/s and "
            f"{time_text(cluster.local_latency)}"
        )
    if cluster.servers:
        words.append(f"{cluster.servers} parameter servers")
    words.append(
        f"fusion threshold {size_text(options.threshold)}, cycle time {time_text(options.cycle)}"
    )
    if options.jitter:
        words.append(f"jitter {number_text(options.jitter * 100)} %")
    return "; ".join(words)


def _table(rows: Sequence[tuple[Cluster, Prediction]]) -> str:
    cells = [
        [
            str(cluster.hosts),
            str(cluster.size),
            time_text(one.step),
            f"{one.efficiency * 100:.1f} %",
            f"{number_text(one.efficiency * cluster.size)}x",
            time_text(one.exchange),
            str(one.responses),
            one.limit,
        ]
        for cluster, one in rows
    ]
    return text_table(
        ("HOSTS", "RANKS", "STEP", "EFFICIENCY", "SPEED-UP", "EXCHANGE", "RESPONSES", "LIMITED BY"),
        cells,
    )


def _verdict(predictions: Predictions) -> str:
    """The best exchange at the greatest size, what limits it, and what to do about that."""
    ends = {name: rows[-1] for name, rows in predictions.items()}
    best = max(ends, key=lambda name: ends[name][1].efficiency)
    cluster, one = ends[best]
    hosts = f"{cluster.hosts} host{'' if cluster.hosts == 1 else 's'}"
    return (
        f"On {hosts} {best} is best with {one.efficiency * 100:.1f} %, limited by {one.limit}: "
        f"{ADVICE[one.limit]}."
    )
