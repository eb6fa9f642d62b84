"""What one tenant may hold in all: sessions, models, bytes on disk; others are not counted in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import MODEL, Http, null_config
from tests.support.keys import new_tenant_key
from tinkex.server.embedded import EmbeddedServer
from tinkex.store import Database, quotas
from tinkex.wire.limits import Limits

SAVE_BYTES = 1 << 10
LIMITS = Limits(
    max_sessions_per_owner=3, max_models_per_owner=2, max_disk_bytes_per_owner=SAVE_BYTES
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quotas")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(null_config(folder, limits=LIMITS)) as running:
        yield running


@pytest.fixture
def tenant(server: EmbeddedServer, folder: Path) -> Iterator[Callable[[], Http]]:
    """Makes a new tenant."""
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield lambda: Http(client, new_tenant_key(folder))


def refused(answer: httpx.Response, *numbers: int) -> None:
    assert answer.status_code == 422, answer.text
    error = answer.json()
    assert error["code"] == "quota-exceeded"
    assert error["hint"]
    for number in numbers:
        assert str(number) in error["detail"]


def open_session(http: Http) -> httpx.Response:
    request = {"tags": [], "user_metadata": {}, "sdk_version": "1"}
    return http.call("POST", "create_session", request)


def test_open_sessions(tenant: Callable[[], Http]) -> None:
    http = tenant()
    held = [http.session() for _ in range(3)]
    refused(open_session(http), 3)
    assert open_session(tenant()).status_code == 200, "another tenant has its own count"
    http.post(f"sessions/{held[0]}/finish", {"reason": {"type": "success"}})
    assert open_session(http).status_code == 200
    refused(open_session(http), 3)


def test_models_of_open_sessions(tenant: Callable[[], Http]) -> None:
    http = tenant()
    session = http.session()
    request = {"session_id": session, "base_model": MODEL, "lora_config": {"rank": 1, "seed": 1}}
    first, _ = (
        http.post("create_model", {**request, "model_seq_id": number}) for number in range(2)
    )
    refused(http.call("POST", "create_model", {**request, "model_seq_id": 2}), 2)
    again = http.post("create_model", {**request, "model_seq_id": 0})
    assert again == first, "a model that is there already is not one more"
    http.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})
    http.model()


def save(http: Http, model: str, seq_id: int, name: str) -> httpx.Response:
    request: dict[str, Any] = {"model_id": model, "path": name, "seq_id": seq_id}
    return http.call("POST", "save_weights", request)


def test_bytes_on_disk(tenant: Callable[[], Http], folder: Path, server: EmbeddedServer) -> None:
    http = tenant()
    model = http.model()
    saved = []
    while (answer := save(http, model, len(saved) + 1, f"n{len(saved)}")).status_code == 200:
        assert "path" in http.result(answer.json()["request_id"])
        saved.append(f"n{len(saved)}")
    refused(answer, SAVE_BYTES)
    refused(http.call("POST", "copy_weights", {"source_path": f"tinker://{model}/weights/n0"}))
    assert len(saved) >= 3
    reported = http.get("billing/usage/checkpoints/current")["data"]
    assert reported[0]["checkpoint_count"] == len(saved)
    db = Database(f"sqlite:///{folder / 'tinkex.db'}", readers=1)
    me = http.get("auth/apikey/me")["details"]["user_details"]["email"].partition("@")[0]
    counted = db.read(quotas.disk_use, me)
    db.close()
    assert counted.checkpoints == reported[0]["size_bytes"] >= SAVE_BYTES
    for name in saved[:2]:
        http.call("DELETE", f"training_runs/{model}/checkpoints/weights/{name}")
    answer = save(http, model, len(saved) + 2, "again")
    assert "path" in http.result(answer.json()["request_id"])


def test_saves_queued_below_the_limit_are_refused_when_they_run(
    tenant: Callable[[], Http],
) -> None:
    http = tenant()
    model = http.model()
    # Number 1 is missing, so all of these wait, each accepted because nothing is on disk yet.
    promises = [save(http, model, number, f"q{number}").json() for number in range(2, 22)]
    http.result(http.step(model, 1)["request_id"])
    results = [http.result(promise["request_id"]) for promise in promises]
    ends = ["error" in result for result in results]
    assert ends == sorted(ends), "the first ones are saved, the rest refused"
    assert True in ends
    assert "limit is 1024" in results[-1]["error"]
    assert results[-1]["category"] == "user"


def test_every_kind_of_file_is_counted(tenant: Callable[[], Http], folder: Path) -> None:
    http = tenant()
    session = http.session()
    model = http.model(session)
    http.result(http.train(model, 1).json()["request_id"])
    request = {"model_id": model, "sampling_session_seq_id": 0, "seq_id": 2}
    sampler = http.result(http.post("save_weights_for_sampler", request)["request_id"])
    me = http.get("auth/apikey/me")["details"]["user_details"]["email"].partition("@")[0]
    db = Database(f"sqlite:///{folder / 'tinkex.db'}", readers=1)
    while not db.read(quotas.disk_use, me).samplers:  # written after the answer
        pass
    load = {"model_id": model, "seq_id": 4, "path": "", "optimizer": True}
    saved = http.result(save(http, model, 3, "one").json()["request_id"])
    http.result(http.post("load_weights", {**load, "path": saved["path"]})["request_id"])
    counted = db.read(quotas.disk_use, me)
    assert min(counted.checkpoints, counted.samplers, counted.snapshots) > 0
    http.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})
    assert sampler["sampling_session_id"]
    assert db.read(quotas.disk_use, me).samplers == 0, "they are gone with the session"
    db.close()
