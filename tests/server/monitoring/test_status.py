"""The status of a server: what a tenant sees of itself and of all, and what an operator sees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import MODEL, Http, null_config
from tests.support.keys import new_tenant_key
from tests.support.waiting import wait_until
from tinkex import ServiceClient
from tinkex.scheduler.work_counters import RecentTokens
from tinkex.server.embedded import EmbeddedServer

COMMON = {
    *("version", "uptime_s", "state", "models", "engine", "workers", "queue", "tokens_per_s"),
    *("memory", "disk"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("status")


@pytest.fixture(scope="module")
def busy(folder: Path) -> Iterator[EmbeddedServer]:
    """A server whose engine takes its time, so that work waits; holes are waited for."""
    config = null_config(folder, device="null:0.05")
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def tenants(busy: EmbeddedServer, folder: Path) -> Iterator[tuple[Http, Http]]:
    other = new_tenant_key(folder)
    with httpx.Client(base_url=busy.base_url, timeout=60) as client:
        yield Http(client, busy.api_key), Http(client, other)


def operator_status(server: EmbeddedServer, folder: Path) -> dict[str, Any]:
    token = (folder / "operator-token").read_text().split()[0]
    url = f"{server.base_url}/api/v1/operator/status"
    answer = httpx.get(url, headers={"X-Operator-Token": token}, timeout=30)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_an_idle_server_says_what_it_is(tenants: tuple[Http, Http], folder: Path) -> None:
    status = tenants[0].get("status")
    assert status.keys() == COMMON
    assert status["state"] == "ready"
    assert status["models"] == [MODEL, "org/named"]
    (worker,) = status["workers"]
    assert (worker["name"], worker["state"]) == ("worker-0", "ready")
    assert not {"host", "worker"} & worker.keys()
    assert status["memory"]["server_bytes"] > 10**7
    assert status["memory"]["engine_bytes"] > 10**7
    assert 0 < status["disk"]["free_bytes"] <= status["disk"]["total_bytes"]
    assert status["disk"]["quota_bytes"] > 0
    assert status["queue"]["yours"] == {"operations": 0, "requests": 0, "running_requests": 0}


def names_in(value: Any) -> Any:
    """The names in an answer, without its values."""
    if isinstance(value, dict):
        return {name: names_in(each) for name, each in value.items()}
    return [names_in(each) for each in value] if isinstance(value, list) else None


def test_the_sdk_has_every_field_of_the_status(
    busy: EmbeddedServer, tenants: tuple[Http, Http]
) -> None:
    with ServiceClient(base_url=busy.base_url, api_key=busy.api_key) as service:
        status = service.create_rest_client().get_server_status().result(30)
    answered = tenants[0].get("status")
    assert names_in(status.model_dump()) == names_in(answered)
    assert (status.version, status.models) == (answered["version"], answered["models"])
    assert status.workers[0].name == "worker-0"
    assert status.queue.yours.operations == answered["queue"]["yours"]["operations"] == 0
    assert status.disk.total_bytes == answered["disk"]["total_bytes"]


def test_a_tenant_sees_totals_and_an_operator_sees_who(
    busy: EmbeddedServer, tenants: tuple[Http, Http], folder: Path
) -> None:
    mine, other = tenants
    model = other.model()
    later = other.train(model, 2, tokens=5).json()["request_id"]  # number 1 has not come
    wait_until(lambda: mine.get("status")["queue"]["training"]["operations"] == 1)
    status = mine.get("status")
    assert status["queue"]["training"]["models"] == 1
    assert status["queue"]["yours"]["operations"] == 0
    assert other.get("status")["queue"]["yours"]["operations"] == 1
    assert "tenants" not in status["queue"]
    all_of_it = operator_status(busy, folder)
    assert all_of_it.keys() == COMMON
    (tenant,) = all_of_it["queue"]["tenants"]
    assert tenant["training"] == 1
    assert tenant["owner"] not in str(status)
    assert all_of_it["workers"][0]["host"]
    first = other.train(model, 1).json()["request_id"]
    assert other.result(first)["metrics"]
    assert other.result(later)["metrics"]
    wait_until(lambda: mine.get("status")["tokens_per_s"]["trained"] >= 0)
    wait_until(lambda: mine.get("status")["queue"]["training"]["operations"] == 0)


def test_busy_share_and_what_is_done_follow_the_work(tenants: tuple[Http, Http]) -> None:
    mine, _ = tenants
    model = mine.model()
    for number in range(1, 9):
        promise = mine.train(model, number, tokens=200).json()["request_id"]
    mine.result(promise)
    status = mine.get("status")
    assert status["engine"]["doing"] == "training"
    assert 0 < status["engine"]["busy_share"] <= 1
    assert status["tokens_per_s"]["trained"] > 0
    assert status["engine"]["num_adapters"] >= 1


def test_a_key_opens_only_the_one_and_the_token_only_the_other(
    busy: EmbeddedServer, folder: Path
) -> None:
    token = (folder / "operator-token").read_text().split()[0]
    url = f"{busy.base_url}/api/v1"
    for path, headers in (
        ("status", {}),
        ("status", {"X-Operator-Token": token}),
        ("operator/status", {"X-API-Key": busy.api_key}),
    ):
        assert httpx.get(f"{url}/{path}", headers=headers).status_code == 401


def test_tokens_per_second_are_those_of_the_last_seconds() -> None:
    recent = RecentTokens(10)
    recent.add("trained", 1000, 5.0)
    recent.add("sampled", 50, 9.5)
    assert recent.per_second(9.9) == {"trained": 100, "sampled": 5}
    assert recent.per_second(15.1) == {"sampled": 5}
    recent.add("scored", 20, 40.0)
    assert recent.per_second(40.0) == {"scored": 2}
