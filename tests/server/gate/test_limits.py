"""Inputs that amplify work: at the limit fine, above it refused with field, value and limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
import zstandard

from tests.server.driving import MODEL, Http, null_config, training_body
from tinkex.server.embedded import EmbeddedServer
from tinkex.wire.limits import Limits

LIMITS = Limits(
    max_body_bytes=100_000,
    max_rank=16,
    max_tokens_per_request=150,
    max_tokens_per_sequence=100,
    max_num_samples=4,
    max_stop_sequences=2,
    max_top_k=5,
    max_metadata_bytes=200,
)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """A server with small limits and room for three waiting samples."""
    config = null_config(
        tmp_path_factory.mktemp("strict"), limits=LIMITS, max_pending_samples_per_owner=0
    )
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=30) as client,
    ):
        yield Http(client, server.api_key)


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """The same limits, and room for samples."""
    config = null_config(tmp_path_factory.mktemp("roomy"), limits=LIMITS)
    with (
        EmbeddedServer(config) as server,
        httpx.Client(base_url=server.base_url, timeout=30) as client,
    ):
        yield Http(client, server.api_key)


def test_the_limits_are_announced(roomy: Http) -> None:
    reported = roomy.get("get_server_capabilities")["limits"]
    assert reported.pop("max_disk_bytes_per_owner") > 0, "a share of the disk, as none is set"
    expected = msgspec.to_builtins(LIMITS)
    del expected["max_disk_bytes_per_owner"]
    assert reported == expected


@pytest.mark.parametrize(("rank", "status"), [(16, 200), (17, 422)])
def test_rank(roomy: Http, rank: int, status: int) -> None:
    request = {"session_id": roomy.session(), "model_seq_id": 0, "base_model": MODEL}
    answer = roomy.call("POST", "create_model", {**request, "lora_config": {"rank": rank}})
    assert answer.status_code == status
    if status == 422:
        assert answer.json()["code"] == "rank-too-large"
        assert "16" in answer.json()["detail"]


@pytest.mark.parametrize(("tokens", "status"), [(100, 200), (101, 422)])
def test_tokens_of_a_sequence(roomy: Http, tokens: int, status: int) -> None:
    answer = roomy.train(roomy.model(), 1, tokens=tokens)
    assert answer.status_code == status, answer.text


def sample(http: Http, **changes: Any) -> httpx.Response:
    session = http.session()
    sampler = http.post(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL},
    )["sampling_session_id"]
    request = {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
        "sampling_params": {"max_tokens": 2},
    }
    return http.call("POST", "asample", {**request, **changes})


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"num_samples": 4}, 200),
        ({"num_samples": 5}, 422),
        ({"topk_prompt_logprobs": 5}, 200),
        ({"topk_prompt_logprobs": 6}, 422),
        ({"topk_sample_logprobs": 6}, 422),
        ({"prompt_alt_tokens_k": 6}, 422),
        ({"sampling_params": {"max_tokens": 2, "stop": ["a", "b"]}}, 200),
        ({"sampling_params": {"max_tokens": 2, "stop": ["a", "b", "c"]}}, 422),
        ({"sampling_params": {"max_tokens": 2, "typical_p": 0.5}}, 422),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [1] * 101}]}}, 422),
        ({"seq_id": 2**63}, 422),
        ({"seq_id": -1}, 422),
    ],
)
def test_sampling(roomy: Http, change: dict[str, Any], status: int) -> None:
    answer = sample(roomy, **change)
    assert answer.status_code == status, answer.text


def test_too_many_waiting_samples_are_refused_with_a_retry_time(strict: Http) -> None:
    answer = sample(strict)
    assert answer.status_code == 429
    assert float(answer.headers["retry-after"]) > 0
    assert answer.json()["code"] == "busy"


def test_large_bodies_are_refused_before_they_are_read(roomy: Http) -> None:
    answer = roomy.call("POST", "create_session", {"tags": ["x" * 200_000]})
    assert answer.status_code == 413


def test_metadata(roomy: Http) -> None:
    request = {"tags": [], "sdk_version": "1", "user_metadata": {"k": "v" * 300}}
    assert roomy.call("POST", "create_session", request).status_code == 422


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"session_id": 1}', b"[" * 100_00, b"\xff\xfe"]
)
@pytest.mark.parametrize("path", ["create_model", "asample", "retrieve_future", "load_weights"])
def test_nonsense_is_a_422_without_a_traceback(roomy: Http, path: str, body: bytes) -> None:
    answer = roomy.client.post(
        f"/api/v1/{path}", content=body, headers={"X-API-Key": roomy.api_key}
    )
    assert answer.status_code == 422
    assert answer.json().keys() == {"detail", "code", "hint"}
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "tinker://../weights/x",
        "tinker://a/weights/..",
        "tinker://a/weights/x/../../y",
        "tinker://a/etc/passwd",
        "file:///etc/passwd",
        "tinker://a/weights/%2e%2e",
        "tinker://a/weights/x\x00",
    ],
)
def test_paths_are_names_and_nothing_else(roomy: Http, path: str) -> None:
    assert roomy.call("POST", "weights_info", {"tinker_path": path}).status_code == 422


def test_unknown_models_are_not_found(roomy: Http) -> None:
    request = {"session_id": roomy.session(), "model_seq_id": 0, "base_model": "gpt-9"}
    answer = roomy.call("POST", "create_model", request)
    assert answer.status_code == 404
    assert MODEL in answer.json()["hint"]


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_batch_too_large_to_read_still_uses_up_its_number(roomy: Http, is_packed: bool) -> None:
    model = roomy.model()
    body = training_body(model, 1, tokens=100_000)
    headers = {"X-API-Key": roomy.api_key, "Content-Type": "application/x-protobuf"}
    if is_packed:
        body = zstandard.compress(body)
        headers["Content-Encoding"] = "zstd"
    refused = roomy.client.post("/api/v1/forward_backward", content=body, headers=headers)
    assert refused.status_code == 413
    step = roomy.step(model, 2)
    assert roomy.poll(step["request_id"]).status_code == 200, "number 1 is not waited for"
