"""Keys and tenants: nothing without a key, nothing of another tenant's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from starlette.routing import Route

from tests.server.driving import MODEL, Http, training_body
from tinkex.server.app import API_ROUTES
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.gate.auth import PUBLIC_PATHS

ROUTES = sorted(
    {
        (method, route.path)
        for route in API_ROUTES
        if isinstance(route, Route)
        for method in (route.methods or ()) - {"HEAD"}
    }
)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_needs_a_key(method: str, path: str, server: EmbeddedServer) -> None:
    url = f"{server.base_url}/api/v1{path.replace('{', '').replace('}', '').replace(':path', '')}"
    is_public = f"/api/v1{path}" in PUBLIC_PATHS
    for headers in ({}, {"X-API-Key": "tml-unknown"}, {"X-API-Key": "eyJhbGciOiJub25lIn0.e30."}):
        answer = httpx.request(method, url, headers=headers)
        assert answer.status_code == (200 if is_public else 401), answer.text


def test_unknown_paths_need_a_key_too(server: EmbeddedServer) -> None:
    assert httpx.get(f"{server.base_url}/api/v2/anything").status_code == 401
    assert httpx.get(f"{server.base_url}/page").status_code == 401


@pytest.fixture
def other(make_key: Callable[[], str], server: EmbeddedServer) -> Iterator[Http]:
    """Another tenant."""
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield Http(client, make_key())


def test_other_tenants_ids_do_not_exist(http: Http, other: Http) -> None:
    session = http.session()
    model = http.model(session)
    promise = http.step(model, 1)["request_id"]
    http.result(promise)
    saved = http.post("save_weights", {"model_id": model, "path": "mine", "seq_id": 2})
    path = http.result(saved["request_id"])["path"]
    sampler = http.post(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL},
    )["sampling_session_id"]
    checkpoint = f"training_runs/{model}/checkpoints/weights/mine"
    target = {"type": "sampling_session", "sampling_session_id": sampler}
    sample = {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "prompt": {"chunks": []},
        "sampling_params": {},
    }
    attempts = [
        ("POST", "session_heartbeat", {"session_id": session}),
        ("POST", f"sessions/{session}/finish", {"reason": {"type": "success"}}),
        ("GET", f"sessions/{session}", None),
        ("PUT", f"sessions/{session}/project", {"project_id": "p"}),
        ("POST", "create_model", {"session_id": session, "model_seq_id": 5, "base_model": MODEL}),
        ("POST", "optim_step", {"model_id": model, "seq_id": 3, "adam_params": {}}),
        ("POST", "get_info", {"model_id": model}),
        ("POST", "save_weights", {"model_id": model, "path": "x", "seq_id": 3}),
        ("POST", "load_weights", {"model_id": model, "seq_id": 3, "path": path, "optimizer": True}),
        ("POST", "unload_model", {"model_id": model}),
        ("POST", "retrieve_future", {"request_id": promise}),
        ("POST", "cancel_future", {"request_id": promise}),
        ("POST", "retrieve_futures", {"target": target}),
        ("POST", "join_sampling_session", {"sampling_session_id": sampler}),
        ("POST", "asample", sample),
        ("GET", f"samplers/{sampler}", None),
        ("GET", f"training_runs/{model}", None),
        ("GET", f"training_runs/{model}/checkpoints", None),
        ("DELETE", checkpoint, None),
        ("POST", f"{checkpoint}/publish", None),
        ("DELETE", f"{checkpoint}/publish", None),
        ("PUT", f"{checkpoint}/ttl", {"ttl_seconds": None}),
        ("GET", f"{checkpoint}/external_weights_urls", None),
        ("GET", f"{checkpoint}/archive", None),
        ("GET", f"{checkpoint}/merged", None),
        ("POST", "weights_info", {"tinker_path": path}),
        ("POST", "copy_weights", {"source_path": path}),
    ]
    for method, route, body in attempts:
        answer = other.call(method, route, body)
        assert answer.status_code == 404, (route, answer.text)
    headers = {"X-API-Key": other.api_key, "Content-Type": "application/x-protobuf"}
    answer = other.client.post(
        "/api/v1/forward_backward", content=training_body(model, 3), headers=headers
    )
    assert answer.status_code == 404
    assert other.get("training_runs")["training_runs"] == []
    assert other.get("checkpoints")["checkpoints"] == []
    assert other.get("sessions")["sessions"] == []
    assert http.result(http.step(model, 3)["request_id"]), "none of it touched the model"


def test_published_weights_and_borrowed_ones(http: Http, other: Http) -> None:
    model = http.model()
    saved = http.post("save_weights", {"model_id": model, "path": "shared", "seq_id": 1})
    path = http.result(saved["request_id"])["path"]
    theirs = other.model()
    load = {"model_id": theirs, "path": path, "optimizer": False}
    first = other.post("load_weights", {**load, "seq_id": 1})
    assert "no checkpoint" in other.result(first["request_id"])["error"]
    borrowed = other.post(
        "load_weights", {**load, "seq_id": 2, "weights_access_token": http.api_key}
    )
    assert other.result(borrowed["request_id"])["path"] == path
    http.post(f"training_runs/{model}/checkpoints/weights/shared/publish")
    assert other.post("weights_info", {"tinker_path": path})["base_model"] == MODEL
    copy = other.post("copy_weights", {"source_path": path})["tinker_path"]
    assert other.get("checkpoints")["checkpoints"][0]["tinker_path"] == copy


def test_a_revoked_key_is_refused(other: Http) -> None:
    assert other.get("auth/apikey/me")["name"] == "test"
    assert other.call("DELETE", "auth/apikey/me").status_code == 200
    assert other.call("GET", "sessions").status_code == 401


def test_a_token_authorises_like_its_key(http: Http) -> None:
    token = http.post("auth/token")["jwt"]
    by_token = Http(http.client, token)
    assert by_token.get("sessions") == http.get("sessions")
    head, _, tail = token.rpartition(".")
    forged = head + "." + ("A" if tail[0] != "A" else "B") + tail[1:]
    assert Http(http.client, forged).call("GET", "sessions").status_code == 401
