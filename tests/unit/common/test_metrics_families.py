"""Names, labels and numbers of the engine's metrics in Prometheus' text format."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from metrics_samples import sample
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from horovod.common.metrics_families import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    EngineCollector,
    cumulative,
)

Labels = dict[str, str]


def scraped(metrics: dict, rank: int = 0, host: str = "a") -> dict[tuple[str, frozenset], float]:
    """What a Prometheus server would store: by name and labels."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: metrics, rank, host))
    text = generate_latest(registry).decode()
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def labels(**more: str) -> frozenset:
    return frozenset({"rank": "0", "host": "a", **more}.items())


def test_counters_carry_rank_host_and_kind() -> None:
    found = scraped(sample())
    assert found["horovod_steps_total", labels()] == 12
    assert found["horovod_operations_total", labels(kind="allreduce")] == 120
    assert found["horovod_operations_total", labels(kind="broadcast")] == 3
    assert found["horovod_input_bytes_total", labels(kind="allreduce")] == 48000
    assert found["horovod_wait_seconds_total", labels()] == 1.5
    assert found["horovod_stalls_total", labels()] == 1


def test_gauges_are_what_is_so_now() -> None:
    found = scraped(sample())
    assert found["horovod_queue_depth", labels()] == 3
    assert found["horovod_operations_in_flight", labels()] == 2
    assert found["horovod_straggler_seconds", labels(straggler="1")] == 0.5


def test_histograms_are_cumulative_and_agree_with_their_count_and_sum() -> None:
    found = scraped(sample())
    name = "horovod_execution_seconds"
    assert found[f"{name}_bucket", labels(le="0.001")] == 30
    assert found[f"{name}_bucket", labels(le="0.01")] == 38
    assert found[f"{name}_bucket", labels(le="+Inf")] == 40
    assert found[f"{name}_count", labels()] == 40
    assert found[f"{name}_sum", labels()] == 0.125
    assert found["horovod_response_tensors_bucket", labels(le="2.0")] == 20


def test_counts_that_do_not_fit_the_bounds_are_refused() -> None:
    assert cumulative([1.0000000000000002e-06], [2, 3]) == [("1e-06", 2.0), ("+Inf", 5.0)]
    with pytest.raises(ValueError, match="2 bounds need 3 counts, not 2"):
        cumulative([1.0, 2.0], [1, 2])


def test_every_figure_of_the_engine_is_exported() -> None:
    keys = {row.key for row in (*COUNTERS, *GAUGES, *HISTOGRAMS)}
    assert keys == set(sample()) - {"rank"}


def test_names_follow_the_conventions_of_prometheus() -> None:
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: sample(), 0, "a"))
    for line in generate_latest(registry).decode().splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            assert re.fullmatch(r"horovod_[a-z]+(_[a-z]+)*", name)
            assert name.endswith("_total") == (kind == "counter")
    for row in (*COUNTERS, *GAUGES, *HISTOGRAMS):
        assert row.help.endswith(".")
        assert ("seconds" in row.key) == row.name.endswith("_seconds")


def test_the_document_names_every_metric_and_no_other() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text()
    table = "".join(line for line in text.splitlines() if line.startswith("| `horovod_"))
    names = {f"{row.name}_total" for row in COUNTERS} | {row.name for row in (*GAUGES, *HISTOGRAMS)}
    assert set(re.findall(r"`(horovod_\w+)`", table)) == names


def test_a_host_with_quotes_and_backslashes_arrives_as_it_is() -> None:
    host = 'a"b\\c\nd'
    assert {dict(key)["host"] for _, key in scraped(sample(), host=host)} == {host}


def test_an_engine_that_has_just_stopped_has_no_metrics() -> None:
    def stopped() -> dict:
        raise ValueError("Horovod has not been initialized; use hvd.init().")

    registry = CollectorRegistry()
    registry.register(EngineCollector(stopped, 0, "a"))
    assert generate_latest(registry) == b""
