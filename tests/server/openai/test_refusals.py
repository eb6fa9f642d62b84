"""Refusals in OpenAI's form: parameters, keys, limits, overload, wrong paths."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import msgspec
import openai
import pytest

from tests.server.openai.conftest import MODEL
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.openai.errors import OpenAIErrors

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"7": 101}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"n": 5000}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 4000}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"extra_body": {"tempreature": 1}}, "tempreature"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"pattern": "a+"}},
                }
            },
            "response_format",
        ),
        ({"extra_body": {"chat_template_kwargs": {"chat_template": "x"}}}, "chat_template_kwargs"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs"),
        ({"extra_body": {"chat_template_kwargs": {"tokenize": False}}}, "chat_template_kwargs"),
        ({"extra_body": {"chat_template_kwargs": {"self": 1}}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "function_call": {}}]},
            "messages[0].function_call",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_parameters_of_chats(client: openai.OpenAI, changes: dict[str, Any], param: str) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 3, **changes}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked)
    assert refused.value.param == param, refused.value
    assert refused.value.type == "invalid_request_error"
    assert refused.value.code


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": "x" * 5000}, "prompt"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_parameters_of_completions(
    client: openai.OpenAI, changes: dict[str, Any], param: str
) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 3, **changes}
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**asked)
    assert refused.value.param == param, refused.value


def test_what_equals_the_default_is_taken(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="x", n=2, best_of=2, suffix="")
    assert len(answer.choices) == 2
    nulls: Any = {"reasoning_effort": None, "stop": None, "tools": None, "logprobs": None}
    chat = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=2, modalities=["text"], **nulls
    )
    assert chat.choices


@pytest.mark.parametrize("length", [2048, 5000])
def test_a_prompt_beyond_the_context_has_openais_code(client: openai.OpenAI, length: int) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="x" * length)
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "prompt"
    # LiteLLM goes by these words, not by the code.
    assert "this model's maximum context length is 2048 tokens" in refused.value.message


def test_keys_come_as_bearer_or_in_our_own_header(
    server: EmbeddedServer, client: openai.OpenAI
) -> None:
    def status(path: str, **headers: str) -> int:
        return httpx.get(server.base_url + path, headers=headers).status_code

    for path in ("/v1/models", "/api/v1/get_server_capabilities"):
        assert status(path, Authorization=f"Bearer {server.api_key}") == 200
        assert status(path, Authorization=f"bearer  {server.api_key}") == 200
        assert status(path, **{"X-API-Key": server.api_key}) == 200
        basic = base64.b64encode(f"x:{server.api_key}".encode()).decode()
        assert status(path, Authorization=f"Basic {basic}") == 401
        assert status(path, Authorization="Bearer") == 401
        assert status(path, Authorization=server.api_key) == 401
    wrong = client.with_options(api_key="tml-wrong")
    with pytest.raises(openai.AuthenticationError) as refused:
        wrong.models.list()
    assert refused.value.code == "invalid_api_key"
    assert refused.value.type == "authentication_error"
    assert "tml-wrong" not in refused.value.message


def test_a_token_made_from_a_bearer_key_is_a_key(server: EmbeddedServer) -> None:
    bearer = {"Authorization": f"Bearer {server.api_key}"}
    first = httpx.post(f"{server.base_url}/api/v1/auth/token", headers=bearer, json={})
    token = {"Authorization": f"Bearer {first.json()['jwt']}"}
    assert httpx.get(f"{server.base_url}/v1/models", headers=token).status_code == 200
    again = httpx.post(f"{server.base_url}/api/v1/auth/token", headers=token, json={})
    assert again.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "no_such_route"),
        ("GET", "/v1/chat/completions", 405, "wrong_method"),
        ("GET", "/oai/api/v1/models/none", 404, "model_not_found"),
    ],
)
def test_wrong_paths(
    server: EmbeddedServer, method: str, path: str, status: int, code: str
) -> None:
    bearer = {"Authorization": f"Bearer {server.api_key}"}
    answer = httpx.request(method, server.base_url + path, headers=bearer)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == code


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": 1}', b"[" * 100])
def test_bodies_that_are_none(server: EmbeddedServer, body: bytes) -> None:
    bearer = {"Authorization": f"Bearer {server.api_key}", "Content-Type": "application/json"}
    answer = httpx.post(f"{server.base_url}/v1/completions", headers=bearer, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def _answered(status: int, body: bytes, path: str) -> list[dict[str, Any]]:
    """What the client is sent where the application answers so, in two pieces."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        length = (b"content-length", str(len(body)).encode())
        headers = [length, (b"retry-after", b"2")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": body[5:]})

    async def send(message: Any) -> None:
        sent.append(message)

    await OpenAIErrors(app)({"type": "http", "path": path}, None, send)  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize(
    ("status", "code", "wanted"),
    [
        (429, "busy", (429, "rate_limit_error", "rate_limit_exceeded")),
        (503, "disk-full", (503, "server_error", "disk_full")),
        (422, "over", (400, "invalid_request_error", "over")),
    ],
)
def test_refusals_before_any_route_are_rewritten(
    status: int, code: str, wanted: tuple[int, str, str]
) -> None:
    body = msgspec.json.encode({"detail": "No.", "code": code, "hint": "Wait."})
    start, rest = asyncio.run(_answered(status, body, "/v1/completions"))
    error = msgspec.json.decode(rest["body"])["error"]
    assert (start["status"], error["type"], error["code"]) == wanted
    assert error["message"] == "No. Wait."
    assert dict(start["headers"]) == {
        b"content-length": str(len(rest["body"])).encode(),
        b"retry-after": b"2",
    }


def test_other_answers_pass_as_they_are() -> None:
    for status, body, path in (
        (200, b'{"detail": 1}', "/v1/models"),
        (429, b"not json", "/v1/models"),
        (422, b'{"detail": "x", "code": "y", "hint": ""}', "/api/v1/asample"),
        (400, b'{"error": {}}', "/v1/models"),
    ):
        start, *parts = asyncio.run(_answered(status, body, path))
        assert start["status"] == status
        assert b"".join(each["body"] for each in parts) == body
