"""Points of the protocol that no client run shows, over plain HTTP and without an engine."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
import zstandard

from tests.server.driving import Http, null_config
from tinkex.server.embedded import EmbeddedServer
from tinkex.types.datum import Datum
from tinkex.types.model_input import ModelInput
from tinkex.wire import protobuf


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    config = null_config(tmp_path_factory.mktemp("protocol-server"))
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=60) as client,
    ):
        yield Http(client, server.api_key)


@pytest.mark.parametrize(
    ("agent", "kinds"),
    [
        ("AsyncTinker/Python 0.22.7", ["training"]),
        ("AsyncTinker/Python 0.25.0", ["training"]),
        ("AsyncTinker/Python 0.30.4", ["external", "training"]),
        ("AsyncTinker/Python 0.36.0", ["external", "training"]),
        ("curl/8", ["external", "training"]),
    ],
)
def test_old_clients_do_not_see_kinds_of_checkpoints_they_cannot_read(
    http: Http, agent: str, kinds: list[str]
) -> None:
    model = http.model()
    for seq_id, route in enumerate(("save_weights", "save_weights_external"), start=1):
        promise = http.post(route, {"model_id": model, "path": "a", "seq_id": seq_id})
        assert "error" not in http.result(promise["request_id"])
    of_run = http.call("GET", f"training_runs/{model}/checkpoints", **{"User-Agent": agent}).json()
    assert sorted(each["checkpoint_type"] for each in of_run["checkpoints"]) == kinds
    mine = http.call("GET", "checkpoints?limit=2", **{"User-Agent": agent}).json()
    assert {each["checkpoint_type"] for each in mine["checkpoints"]} == set(kinds)


def test_a_batch_of_equal_examples_is_read_however_small_it_is_sent(http: Http) -> None:
    ids = [7] * 300
    example = Datum(ModelInput.from_ints(ids), {"target_tokens": ids, "weights": [1.0] * 300})
    parts = protobuf.encode_forward_backward_request(
        model_id=http.model(),
        seq_id=1,
        data=[example] * 1000,
        loss_fn="cross_entropy",
        loss_fn_config=None,
        forward_only=False,
    )
    body = b"".join(parts)
    sent = zstandard.compress(body)
    assert len(body) > 3000 * len(sent)
    answer = http.client.post(
        "/api/v1/forward_backward",
        content=sent,
        headers={
            "X-API-Key": http.api_key,
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "zstd",
        },
    )
    assert answer.status_code == 200, answer.text
    assert len(http.result(answer.json()["request_id"])["loss_fn_outputs"]) == 1000
