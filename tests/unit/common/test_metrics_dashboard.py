"""The Grafana dashboard asks for nothing that is not exported, and is what Grafana expects."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from metrics_samples import sample
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from horovod.common.metrics_families import EngineCollector

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = json.loads((ROOT / "deploy/grafana/horovod-dashboard.json").read_text())
VARIABLES = [one["name"] for one in DASHBOARD["templating"]["list"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
NAME = re.compile(r"\b(?:horovod|process)_\w+")


def exported() -> dict[str, set[str]]:
    """Every name in a scrape, with the labels that it has."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: sample(), 0, "a"))
    ProcessCollector(registry=registry)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for one in family.samples:
            found.setdefault(one.name, set()).update(one.labels)
    return found


def expressions() -> list[str]:
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return asked + [
        one["definition"] for one in DASHBOARD["templating"]["list"] if "definition" in one
    ]


def test_every_name_is_exported_with_the_labels_it_is_chosen_by() -> None:
    known = exported()
    for text in expressions():
        names = NAME.findall(text)
        assert names, text
        for name in names:
            assert name in known, f"{name} in {text}"
        for name, chosen in re.findall(rf"({NAME.pattern})\{{([^}}]*)\}}", text):
            # Prometheus itself adds job and instance.
            assert set(re.findall(r"(\w+)=", chosen)) <= known[name] | {"job", "instance"}, text


def test_counters_are_only_looked_at_as_rates_and_histograms_by_their_buckets() -> None:
    for text in expressions():
        for before, name in re.findall(rf"(\w*\(?)({NAME.pattern})", text):
            counts = name.endswith(("_total", "_bucket", "_sum", "_count"))
            assert counts == (before in ("rate(", "increase(")), text
        for inner in re.findall(r"histogram_quantile\((.*)\)$", text):
            assert "_bucket" in inner and "sum by (le)" in inner


def test_what_the_issue_asks_to_see_is_there() -> None:
    text = "\n".join(expressions())
    for name in (
        "horovod_steps_total", "horovod_input_bytes_total", "horovod_wait_seconds_total",
        "horovod_negotiation_seconds_bucket", "horovod_execution_seconds_bucket",
        "horovod_response_tensors_sum", "horovod_cache_hits_total", "horovod_stalls_total",
        "horovod_queue_depth",
    ):  # fmt: skip
        assert name in text


def test_job_and_instance_can_be_chosen_and_every_query_heeds_them() -> None:
    assert VARIABLES == ["datasource", "job", "instance", "rank"]
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            for selector in re.findall(rf"{NAME.pattern}(\{{[^}}]*\}}|)", target["expr"]):
                assert 'job=~"$job", instance=~"$instance"' in selector
    for used in re.findall(r"\$(\w+)", " ".join(expressions())):
        assert used in VARIABLES or used.startswith("__")


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda panel: panel["title"])
def test_a_panel_has_what_grafana_needs(panel: dict[str, Any]) -> None:
    assert panel["type"] in ("row", "stat", "timeseries")
    place = panel["gridPos"]
    assert place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["h"] > 0
    if panel["type"] != "row":
        references = [target["refId"] for target in panel["targets"]]
        assert references == ["A", "B", "C", "D"][: len(references)]
        assert panel["description"].endswith(".") and "unit" in panel["fieldConfig"]["defaults"]
        assert "overrides" in panel["fieldConfig"] and panel["options"]


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    for one, other in itertools.combinations(
        [panel["gridPos"] for panel in DASHBOARD["panels"]], 2
    ):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        ), (one, other)


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time", "annotations"} <= set(
        DASHBOARD
    )
    assert (
        DASHBOARD["schemaVersion"] >= 36
    )  # panels of the type timeseries, data sources as objects
    assert "id" not in DASHBOARD  # a number of the Grafana that it came from
    assert len(DASHBOARD["uid"]) <= 40
