"""The engine's metrics in Prometheus' terms: names, units, labels and kinds, all in two tables.

Imports prometheus_client, so only who serves metrics imports this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Metrics = Mapping[str, Any]  # what `_core.metrics()` returns
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

OWN_LABELS = ("rank", "host")


class Row(NamedTuple):
    """One figure: its key in the engine's dict, its name for Prometheus, what it means.

    Attributes:
        label: the further label whose values are the keys of the figure, when it is a dict.
    """

    key: str
    name: str
    help: str
    label: str = ""


# Prometheus wants base units in the name; `_total` is added to counters.
COUNTERS = (
    Row("steps", "horovod_steps", "Training steps that have begun on this rank."),
    Row("operations", "horovod_operations", "Operations that are done, by kind.", "kind"),
    Row("bytes", "horovod_input_bytes", "Bytes of this rank's inputs, by kind.", "kind"),
    Row("operations_submitted", "horovod_operations_submitted", "Operations submitted here."),
    Row("operations_failed", "horovod_operations_failed", "Operations that ended in an error."),
    Row("responses", "horovod_responses", "Responses executed; one may hold several tensors."),
    Row("cache_hits", "horovod_cache_hits", "Tensors announced by the id of a cached response."),
    Row("cache_misses", "horovod_cache_misses", "Tensors announced in full."),
    Row("stalls", "horovod_stalls", "Reports of stalled tensors (rank 0 makes them)."),
    Row("reconnects", "horovod_reconnects", "Connections that were made anew."),
    Row("messages_sent", "horovod_messages_sent", "Messages of the negotiation sent by this rank."),
    Row("cycles", "horovod_cycles", "Batches of responses that were flushed (by rank 0)."),
    Row("wait_seconds", "horovod_wait_seconds", "Seconds that callers were blocked, all threads."),
    Row(
        "data_wait_seconds",
        "horovod_data_wait_seconds",
        "Seconds of execution before the other ranks' data had arrived.",
    ),
)
GAUGES = (
    Row("size", "horovod_world_size", "Ranks of the job."),
    Row("operations_in_flight", "horovod_operations_in_flight", "Submitted and not done."),
    Row("queue_depth", "horovod_queue_depth", "Responses that wait to be executed."),
    Row(
        "straggler_seconds",
        "horovod_straggler_seconds",
        "Seconds that the others waited for that rank over the last window (rank 0 knows).",
        "straggler",
    ),
)
HISTOGRAMS = (
    Row("execution_seconds", "horovod_execution_seconds", "Execution of one response."),
    Row(
        "negotiation_seconds",
        "horovod_negotiation_seconds",
        "From the submission of a tensor here to its place in the response log.",
    ),
    Row("tensors_per_response", "horovod_response_tensors", "Tensors executed together."),
    Row("response_bytes", "horovod_response_bytes", "Bytes of one response."),
)


def families(metrics: Metrics, rank: int, host: str) -> Iterator[Family]:
    """The families of one scrape.

    Args:
        metrics: what the engine says of itself.
        rank: value of the label `rank` of every sample.
        host: value of the label `host` of every sample.

    Raises:
        KeyError: the engine did not give a figure of the tables above.
    """
    own = [str(rank), host]
    for row in COUNTERS:
        yield _with_values(CounterMetricFamily, row, metrics[row.key], own)
    for row in GAUGES:
        yield _with_values(GaugeMetricFamily, row, metrics[row.key], own)
    for row in HISTOGRAMS:
        histogram = HistogramMetricFamily(row.name, row.help, labels=OWN_LABELS)
        found = metrics[row.key]
        buckets = cumulative(found["bounds"], found["counts"])
        histogram.add_metric(own, buckets, float(found["sum"]))
        yield histogram


def _with_values(
    kind: type[CounterMetricFamily | GaugeMetricFamily], row: Row, value: Any, own: list[str]
) -> CounterMetricFamily | GaugeMetricFamily:
    labels = [*OWN_LABELS, row.label] if row.label else OWN_LABELS
    family = kind(row.name, row.help, labels=labels)
    if row.label:
        for key, part in value.items():
            family.add_metric([*own, str(key)], part)
    else:
        family.add_metric(own, value)
    return family


def cumulative(bounds: list[float], counts: list[int]) -> list[tuple[str, float]]:
    """Prometheus' buckets: for each upper bound how many values were not above it, +Inf last.

    Args:
        bounds: upper bounds, ascending.
        counts: values in each bucket, one more than there are bounds: the last is above them all.

    Raises:
        ValueError: there is not one more count than there are bounds.
    """
    if len(counts) != len(bounds) + 1:
        raise ValueError(f"{len(bounds)} bounds need {len(bounds) + 1} counts, not {len(counts)}")
    # Nine digits: 1e-06 and not 1.0000000000000002e-06.
    names = [floatToGoString(float(f"{bound:.9g}")) for bound in bounds] + ["+Inf"]
    return [
        (name, float(sum_)) for name, sum_ in zip(names, itertools.accumulate(counts), strict=True)
    ]


class EngineCollector(Collector):
    """Asks the engine at the time of a scrape; keeps nothing."""

    def __init__(self, read: Callable[[], Metrics], rank: int, host: str) -> None:
        self._read, self._rank, self._host = read, rank, host

    def collect(self) -> Iterator[Family]:
        """The families now; none when the engine has just been shut down."""
        try:
            metrics = self._read()
        except ValueError:
            return
        yield from families(metrics, self._rank, self._host)
