"""The files of `deploy/monitoring`: Prometheus takes them, and every metric in them is declared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.programs import DEPLOY, run
from tinkex.server.monitoring.metric_list import METRICS

FOLDER = DEPLOY / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
_NAME = re.compile(r"\b(tinkex_[a-z0-9_]+)")
_LABELS = re.compile(r"(?:by \(([^)]*)\)|[{,]\s*(\w+)\s*(?:=~|!~|=|!=)\s*\")")


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def dashboard_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


EXPRESSIONS = [*(rule["expr"] for rule in alerts()), *dashboard_expressions()]


def declared_name(name: str) -> str:
    """The metric that a series belongs to: histograms have three kinds of them."""
    bare = re.sub(r"_(bucket|sum|count)$", "", name)
    is_histogram = bare in METRICS and METRICS[bare].kind == "histogram"
    return bare if is_histogram and bare != name else name


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_series_is_a_declared_metric_with_its_labels(expression: str) -> None:
    names = {declared_name(each) for each in _NAME.findall(expression)}
    assert names <= METRICS.keys()
    known = {"instance", "job", "le"}.union(*(METRICS[name].labels for name in names))
    for listed, single in _LABELS.findall(expression):
        for label in (listed or single).split(","):
            assert label.strip() in known, label
    for name in _NAME.findall(expression):
        is_histogram = METRICS[declared_name(name)].kind == "histogram"
        assert is_histogram == (declared_name(name) != name), name


def test_the_dashboard_shows_every_metric() -> None:
    shown = {declared_name(n) for each in dashboard_expressions() for n in _NAME.findall(each)}
    assert METRICS.keys() - shown == set()


def test_panels_have_ids_titles_and_places_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    assert all(each["title"] for each in panels)
    cells = [
        (x, y)
        for grid in (each["gridPos"] for each in panels)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(cells) == len(set(cells)), "two panels overlap"
    assert max(x for x, _ in cells) < 24


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "action"}


def test_prometheus_takes_config_and_rules() -> None:
    config = FOLDER / "prometheus.yaml"
    assert "10 rules found" in run("promtool", "check", "config", config)
