"""Metrics for Prometheus: where they are answered, to whom, and what they say after some work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from tests.server.driving import Http, null_config
from tests.server.monitoring.test_cancelling import sampled
from tests.support.waiting import wait_until
from tinkex.errors import ServerError
from tinkex.server.app import build_app
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.http.request_metrics import RouteLabels
from tinkex.server.monitoring.metric_list import METRICS
from tinkex.telemetry.distribution import Distribution

TOKEN = "5a" * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metered")


@pytest.fixture(scope="module")
def metered(folder: Path) -> Iterator[EmbeddedServer]:
    """A server with metrics on a port of its own and behind a token."""
    token_file = folder / "metrics-token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    config = null_config(folder / "data", metrics_port=0, metrics_token_file=token_file, workers=2)
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def http(metered: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=metered.base_url, timeout=60) as client:
        yield Http(client, metered.api_key)


def own_port(server: EmbeddedServer) -> str:
    found = re.search(r"Metrics: (http://127\.0\.0\.1:\d+/metrics)", server.log())
    assert found is not None, server.log()
    return found[1]


def scrape(server: EmbeddedServer) -> dict[str, Family]:
    """The families by the name they are declared under."""
    families = list(text_string_to_metric_families(httpx.get(own_port(server)).text))
    names = {each.name + "_total" * (each.type == "counter"): each for each in families}
    return names


def value(server: EmbeddedServer, name: str, **labels: str) -> float:
    """The sum of a metric's values with these labels."""
    family = scrape(server)[name]
    samples = [
        each
        for each in family.samples
        if each.name == name and labels.items() <= each.labels.items()
    ]
    return sum(each.value for each in samples)


def work(http: Http) -> int:
    """A bit of every kind; the number of tokens that were sampled."""
    model = http.model()
    for number in range(1, 4):
        promise = http.train(model, number, tokens=50).json()["request_id"]
    http.result(promise)
    http.result(http.step(model, 4)["request_id"])
    results = [http.result(each) for each in sampled(http, 3)]
    return sum(len(sequence["tokens"]) for each in results for sequence in each["sequences"])


def test_every_declared_metric_is_answered_and_no_other(
    metered: EmbeddedServer, http: Http
) -> None:
    work(http)
    wait_until(lambda: value(metered, "tinkex_samples_total", outcome="ok") >= 3)
    found = scrape(metered)
    assert found.keys() == METRICS.keys()
    for name, family in found.items():
        assert family.type == METRICS[name].kind, name
        assert family.documentation == METRICS[name].about
        for sample in family.samples:
            own = {"le"} if family.type == "histogram" else set()
            assert sample.labels.keys() - own == set(METRICS[name].labels), name


def test_the_numbers_are_those_of_the_work(metered: EmbeddedServer, http: Http) -> None:
    names = [
        ("tinkex_tokens_total", {"use": "trained"}),
        ("tinkex_tokens_total", {"use": "sampled"}),
        ("tinkex_tokens_total", {"use": "prompt"}),
        ("tinkex_operations_total", {"kind": "forward_backward", "outcome": "ok"}),
        ("tinkex_operations_total", {"kind": "optim_step", "outcome": "ok"}),
        ("tinkex_samples_total", {"outcome": "ok"}),
        ("tinkex_http_requests_total", {"route": "/api/v1/asample", "code": "200"}),
    ]

    def values() -> list[float]:
        found = scrape(metered)
        return [
            sum(s.value for s in found[name].samples if labels.items() <= s.labels.items())
            for name, labels in names
        ]

    work(http)
    wait_until(lambda: value(metered, "tinkex_running_samples") == 0)
    before = values()
    expected = [150.0, work(http), 9.0, 3.0, 1.0, 3.0, 3.0]
    wait_until(lambda: values()[5] - before[5] == 3)
    assert [new - old for new, old in zip(values(), before, strict=True)] == expected


def test_workers_memory_and_disk_are_there(metered: EmbeddedServer, http: Http) -> None:
    wait_until(lambda: value(metered, "tinkex_worker_up") == 2)
    assert value(metered, "tinkex_ready") == 1
    assert value(metered, "tinkex_memory_bytes", process="server") > 10**7
    assert value(metered, "tinkex_memory_bytes", process="engines") > 10**7
    free = value(metered, "tinkex_disk_free_bytes")
    assert 0 < free <= value(metered, "tinkex_disk_total_bytes")
    model = http.model()
    http.train(model, 2)  # waits for number 1
    kind = {"kind": "forward_backward"}
    assert value(metered, "tinkex_queue_operations", **kind) == 1
    assert value(metered, "tinkex_queue_runs") == 1
    http.post("cancel", {"run_id": model})
    assert value(metered, "tinkex_queue_operations", **kind) == 0
    cancelled = {**kind, "outcome": "cancelled"}
    assert value(metered, "tinkex_operations_total", **cancelled) >= 1


def test_no_path_key_or_owner_becomes_a_label(metered: EmbeddedServer, http: Http) -> None:
    model = http.model()
    http.get(f"training_runs/{model}")
    secret = "tml-" + "s3cret" * 5
    httpx.get(f"{metered.base_url}/api/v1/training_runs/{secret}", headers={"X-API-Key": secret})
    httpx.get(f"{metered.base_url}/{secret}")
    text = httpx.get(own_port(metered)).text
    for hidden in (model, secret, metered.api_key, TOKEN, "root"):
        assert hidden not in text
    route = "/api/v1/training_runs/*"
    assert value(metered, "tinkex_http_requests_total", route=route, code="200") == 1
    assert value(metered, "tinkex_http_requests_total", route=route, code="401") == 1
    assert value(metered, "tinkex_http_requests_total", route="other") >= 1


def test_the_main_port_needs_the_token(metered: EmbeddedServer) -> None:
    url = f"{metered.base_url}/metrics"
    good = httpx.get(url, headers={"Authorization": f"Bearer {TOKEN}"})
    assert good.status_code == 200
    assert good.headers["content-type"].startswith("text/plain")
    assert "tinkex_ready 1.0" in good.text
    for sent in ("", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer x", f"Bearer {TOKEN[:-2]}"):
        refused = httpx.get(url, headers={"Authorization": sent})
        assert (refused.status_code, refused.json()["code"]) == (401, "no-metrics-token"), sent
    assert httpx.get(url, headers={"X-API-Key": metered.api_key}).status_code == 401
    assert TOKEN not in metered.log()


def test_without_options_there_are_no_metrics(server: EmbeddedServer) -> None:
    url = f"{server.base_url}/metrics"
    assert httpx.get(url).status_code == 401
    key = {"X-API-Key": server.api_key, "Authorization": f"Bearer {TOKEN}"}
    assert httpx.get(url, headers=key).status_code == 404
    assert "Metrics:" not in server.log()


def test_a_token_file_or_port_that_cannot_be_used_ends_the_start(
    tmp_path: Path, metered: EmbeddedServer
) -> None:
    config = null_config(tmp_path / "data", metrics_token_file=tmp_path / "none")
    with (
        pytest.raises(ServerError, match="metrics token"),
        closing(EmbeddedServer(config)) as failing,
    ):
        failing.start()
    port = int(own_port(metered).rpartition(":")[2].removesuffix("/metrics"))
    config = null_config(tmp_path / "data", metrics_port=port)
    with (
        pytest.raises(ServerError, match="another --metrics-port"),
        closing(EmbeddedServer(config)) as failing,
    ):
        failing.start()


def test_labels_of_routes_have_no_parameters() -> None:
    labels = RouteLabels(build_app(keyring=None).routes)  # type: ignore[arg-type]
    assert labels.of("/api/v1/forward_backward") == "/api/v1/forward_backward"
    assert labels.of("/healthz") == "/healthz"
    assert labels.of("/api/v1/training_runs/x/checkpoints") == "/api/v1/training_runs/*"
    assert labels.of("/api/v1/training_runs") == "/api/v1/training_runs"
    assert labels.of("/") == "/", "the page"
    assert labels.of("/page/app.js") == "/page/*"
    for unknown in ("", "/x", "/api/v1/none", "/api/v1/none/of/it", "//", "x"):
        assert labels.of(unknown) == "other"


def test_a_distribution_counts_up_to_each_bound() -> None:
    spread = Distribution((1.0, 2.0))
    for each in (0.5, 1.0, 1.5, 9.0):
        spread.add(each)
    assert spread.cumulative() == [(1.0, 2), (2.0, 3), (float("inf"), 4)]
    assert spread.total == 12.0
