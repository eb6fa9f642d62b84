"""`create_custom_loss` and its ids on the wire: once each, for their owner, within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import Http, null_config
from tests.support.keys import new_tenant_key
from tinkex.engine.custom_loss.bounds import MAX_NODES
from tinkex.server.embedded import EmbeddedServer
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.wire import protobuf
from tinkex.wire.limits import Limits

SUM = {"op": "call_method", "name": "s", "target": "sum", "args": [{"ref": "lp"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("custom-loss-requests")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedServer]:
    limits = Limits(max_custom_losses_per_owner=3, max_custom_loss_bytes_per_owner=3000)
    with EmbeddedServer(null_config(folder, limits=limits)) as running:
        yield running


@pytest.fixture
def tenant(server: EmbeddedServer, folder: Path) -> Iterator[Callable[[], Http]]:
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield lambda: Http(client, new_tenant_key(folder))


def graph(*nodes: dict[str, Any]) -> dict[str, Any]:
    first = {"op": "placeholder", "name": "lp", "target": "logprobs"}
    result = {"tuple": [{"ref": nodes[-1]["name"]}, {"dict": {}}]}
    last = {"op": "output", "name": "output", "target": "output", "args": [result]}
    return {"format": 1, "nodes": [first, *nodes, last]}


def wanted(session_id: str, number: int = 0, *nodes: dict[str, Any], **changes: Any) -> Any:
    return {
        "session_id": session_id,
        "custom_loss_seq_id": number,
        "name": "total",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": graph(*(nodes or (SUM,))),
        "type": "create_custom_loss",
        **changes,
    }


def create(http: Http, session_id: str, number: int = 0, *nodes: Any) -> str:
    promise = http.post("create_custom_loss", wanted(session_id, number, *nodes))
    answer = http.result(promise["request_id"])
    assert answer["type"] == "create_custom_loss"
    return str(answer["loss_id"])


def train(http: Http, model_id: str, seq_id: int, **config: Any) -> httpx.Response:
    datum = Datum(ModelInput.from_ints([1, 2, 3]), {"target_tokens": [2, 3, 4]})
    body = protobuf.encode_forward_backward_request(
        model_id=model_id,
        seq_id=seq_id,
        data=[datum],
        loss_fn="custom",
        loss_fn_config=config,
        forward_only=False,
    )
    return http.client.post(
        "/api/v1/forward_backward",
        content=b"".join(body),
        headers={"X-API-Key": http.api_key, "Content-Type": "application/x-protobuf"},
    )


def refused(answer: httpx.Response, status: int, code: str) -> str:
    assert answer.status_code == status, answer.text
    assert answer.json()["code"] == code, answer.text
    return str(answer.json()["detail"])


def test_the_server_says_that_it_runs_them(tenant: Callable[[], Http]) -> None:
    request = {"sdk_version": "0.36.0", "project_id": None}
    assert tenant().post("client/config", request)["custom_loss_server_side"] is True


def test_a_number_makes_one_loss_however_often_it_comes(tenant: Callable[[], Http]) -> None:
    http = tenant()
    session_id = http.session()
    first = http.post("create_custom_loss", wanted(session_id))
    again = http.post("create_custom_loss", wanted(session_id))
    assert first == again
    other = http.call("POST", "create_custom_loss", wanted(session_id, name="other"))
    assert "used for another loss" in refused(other, 422, "sequence-conflict")
    assert http.result(first["request_id"]) == http.result(first["request_id"])
    assert create(http, session_id, 1) != http.result(first["request_id"])["loss_id"]


def test_a_loss_serves_the_models_of_its_session_alone(tenant: Callable[[], Http]) -> None:
    http, other = tenant(), tenant()
    session_id = http.session()
    loss_id, model_id = create(http, session_id), http.model(session_id)
    promise = train(http, model_id, 1, loss_id=loss_id)
    assert promise.status_code == 200, promise.text
    assert "loss:sum" in http.result(promise.json()["request_id"])["metrics"]

    elsewhere = train(http, http.model(), 1, loss_id=loss_id)
    assert loss_id in refused(elsewhere, 404, "unknown-custom-loss")
    refused(train(other, other.model(), 1, loss_id=loss_id), 404, "unknown-custom-loss")
    refused(train(http, model_id, 2, loss_id="loss-none"), 404, "unknown-custom-loss")
    refused(train(http, model_id, 3), 422, "unprocessable")
    refused(train(http, model_id, 4, loss_id=3.0), 422, "unprocessable")
    after = train(http, model_id, 5, loss_id=loss_id)
    assert "metrics" in http.result(after.json()["request_id"]), "refused numbers count as used"
    request_id = http.post("create_custom_loss", wanted(session_id))["request_id"]
    assert other.poll(request_id).status_code == 404


def test_a_loss_needs_an_open_session_of_its_owner(tenant: Callable[[], Http]) -> None:
    http, other = tenant(), tenant()
    session_id = http.session()
    answer = other.call("POST", "create_custom_loss", wanted(session_id))
    refused(answer, 404, "unknown-session")
    http.post(f"sessions/{session_id}/finish", {"reason": {"type": "success"}})
    refused(http.call("POST", "create_custom_loss", wanted(session_id)), 410, "session-ended")


def test_what_is_hostile_or_too_large_is_refused_at_once(tenant: Callable[[], Http]) -> None:
    http = tenant()
    session_id = http.session()

    def answer(*nodes: Any, **changes: Any) -> httpx.Response:
        return http.call("POST", "create_custom_loss", wanted(session_id, 0, *nodes, **changes))

    evil = {**SUM, "op": "call_function", "target": "os.system", "args": ["id"]}
    error = refused(answer(evil), 422, "bad-custom-loss")
    assert "graph.nodes[1] (s)" in error
    assert "'os.system'" in error
    many = [{**SUM, "name": f"s{n}", "target": "exp"} for n in range(MAX_NODES)]
    assert str(MAX_NODES) in refused(answer(*many), 422, "bad-custom-loss")
    refused(answer(name="n" * 1000), 422, "limit-exceeded")
    refused(answer(custom_loss_seq_id=2**40), 422, "unprocessable")
    assert answer(graph={"format": 2, "nodes": []}).status_code == 422
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert 400 <= answer({**SUM, "args": [deep]}).status_code < 500
    wide = answer({**SUM, "args": [{"ref": "lp"}, [0] * 200_000]})
    assert 400 <= wide.status_code < 500
    assert create(http, session_id), "nothing of it used the number"


def test_a_tenant_keeps_a_bounded_number_of_losses_and_bytes(
    tenant: Callable[[], Http],
) -> None:
    http = tenant()
    session_id = http.session()
    for number in range(3):
        create(http, session_id, number)
    over = http.call("POST", "create_custom_loss", wanted(session_id, 3))
    assert "3 custom losses" in refused(over, 422, "quota-exceeded")
    assert create(http, session_id, 2), "what is there is still there"
    http.post(f"sessions/{session_id}/finish", {"reason": {"type": "success"}})

    session_id = http.session()
    long = [{**SUM, "name": f"s{n}", "target": "exp"} for n in range(40)]
    over = http.call(
        "POST", "create_custom_loss", wanted(session_id, 0, *long, {**SUM, "name": "last"})
    )
    assert "3000" in refused(over, 422, "quota-exceeded")
    assert create(http, session_id)
