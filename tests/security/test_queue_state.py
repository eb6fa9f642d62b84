"""What a client is told while it waits: nothing in general, the reason when it is held up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.server.driving import MODEL, Http, null_config
from tests.support.keys import new_tenant_key
from tinkex.scheduler import SchedulerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.wire.limits import Limits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[EmbeddedServer]:
    """A server that takes a while for everything and holds polls for a moment only.

    One for each test: what another has left waiting would be told of.
    """
    config = null_config(
        folder,
        device="null:0.3",
        poll_hold_s=0.05,
        scheduler=SchedulerConfig(max_running_samples=1, max_batch_operations=1),
        limits=Limits(max_requests_per_s=1, max_burst_requests=150),
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture
def tenants(server: EmbeddedServer, folder: Path) -> Iterator[list[Http]]:
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield [Http(client, new_tenant_key(folder)) for _ in range(2)]


def state_of(http: Http, request_id: str) -> tuple[str, str | None]:
    answer = http.poll(request_id)
    assert answer.status_code == 408, answer.text
    error = msgspec.json.decode(answer.content)
    assert error["type"] == "try_again"
    return error["queue_state"], error["queue_state_reason"]


def sample(http: Http, sampler: str, number: int) -> str:
    request = {
        "sampling_session_id": sampler,
        "seq_id": number,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
        "sampling_params": {"max_tokens": 2},
    }
    return str(http.post("asample", request)["request_id"])


def test_alone_nothing_is_said(tenants: list[Http]) -> None:
    model = tenants[0].model()
    promises = [tenants[0].train(model, number).json()["request_id"] for number in (1, 2, 3)]
    assert state_of(tenants[0], promises[-1]) == ("active", None)
    for promise in promises:
        tenants[0].result(promise)


def test_beside_another_tenant_capacity_is_short(tenants: list[Http]) -> None:
    models = [tenant.model() for tenant in tenants]
    promises = [
        [tenant.train(model, number).json()["request_id"] for number in (1, 2, 3)]
        for tenant, model in zip(tenants, models, strict=True)
    ]
    state, reason = state_of(tenants[0], promises[0][-1])
    assert state == "paused_capacity"
    assert reason is not None
    assert "one other tenant" in reason
    for tenant, ids in zip(tenants, promises, strict=True):
        for promise in ids:
            tenant.result(promise)


def test_a_sample_without_a_slot_reports_paused_capacity(tenants: list[Http]) -> None:
    http = tenants[0]
    session = http.session()
    request = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = http.post("create_sampling_session", request)["sampling_session_id"]
    promises = [sample(http, sampler, number) for number in range(4)]
    state, reason = state_of(http, promises[-1])
    assert state == "paused_capacity"
    assert "4 of them yours" in (reason or "") or "3 of them yours" in (reason or "")
    for promise in promises:
        http.result(promise)


def test_a_shared_poll_reports_when_samples_wait(
    tenants: list[Http],
) -> None:
    """Also before a poll's time is over; one that does not ask gets the protocol's answer."""
    http = tenants[0]
    session = http.session()
    request = {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL}
    sampler = http.post("create_sampling_session", request)["sampling_session_id"]
    promises = [sample(http, sampler, number) for number in range(12)]
    target = {"type": "sampling_session", "sampling_session_id": sampler}
    body: dict[str, object] = {"target": target, "known_queue_state": "active", "prev_cursor": 0}

    def ask() -> dict[str, object]:
        answer = http.post("retrieve_futures", body)
        body["prev_cursor"] = answer["cursor"]
        body["known_queue_state"] = answer["queue_state"]
        return dict(answer)

    states, reasons = ["active"], []
    done = 0
    while done < len(promises):
        answer = ask()
        done += len(answer["completions"])  # type: ignore[arg-type]
        if answer["queue_state"] != states[-1]:
            states.append(str(answer["queue_state"]))
            reasons.append(answer["queue_state_reason"] if len(states) % 2 == 0 else None)
    assert states[1] == "paused_capacity"
    assert "The engine is busy" in str(reasons[0])
    assert ask()["queue_state"] == "active"
    plain = http.post("retrieve_futures", {"target": target, "prev_cursor": 0})
    assert plain.keys() == {"completions", "cursor"}


def test_a_throttled_tenant_sees_it_and_another_does_not(tenants: list[Http]) -> None:
    greedy, polite = tenants
    models = [tenant.model() for tenant in tenants]
    promises = [greedy.train(models[0], number).json()["request_id"] for number in range(1, 31)]
    waiting = [polite.train(models[1], number).json()["request_id"] for number in range(1, 16)]
    while greedy.call("GET", "sessions").status_code == 200:
        pass
    while (answer := greedy.poll(promises[-1])).status_code == 429:
        pass  # one request a second comes back to it
    assert answer.status_code == 408
    assert answer.json()["queue_state"] == "paused_rate_limit"
    assert "1 requests per second" in answer.json()["queue_state_reason"]
    assert state_of(polite, waiting[-1])[0] == "paused_capacity"
