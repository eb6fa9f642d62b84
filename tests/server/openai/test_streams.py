"""Streamed answers: together their pieces are the whole answer."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.server.openai.conftest import ADD, ASK_CALL, ASK_JSON, JSON, MODEL, Trained
from tinkex.server.embedded import EmbeddedServer

MESSAGES: list[Any] = [{"role": "user", "content": "Grüße 日本"}]


def both(client: openai.OpenAI, **changes: Any) -> tuple[Any, list[Any]]:
    """The whole answer to a chat, and its pieces."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": 40,
        "seed": 4,
        **changes,
    }
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.create(**asked, stream=True) as stream:
        return whole, list(stream)


def content_of(pieces: list[Any], index: int = 0) -> str:
    choices = [each for piece in pieces for each in piece.choices if each.index == index]
    return "".join(each.delta.content or "" for each in choices)


def test_pieces_are_the_whole(client: openai.OpenAI) -> None:
    whole, pieces = both(client, n=3, logprobs=True, top_logprobs=1, temperature=1.2)
    assert all(piece.object == "chat.completion.chunk" for piece in pieces)
    assert len({piece.id for piece in pieces}) == 1
    for choice in whole.choices:
        mine = [each for piece in pieces for each in piece.choices if each.index == choice.index]
        assert mine[0].delta.role == "assistant"
        assert content_of(pieces, choice.index) == choice.message.content
        entries = [entry for each in mine if each.logprobs for entry in each.logprobs.content]
        assert [each.token for each in entries] == [each.token for each in choice.logprobs.content]
        assert [each.logprob for each in entries] == pytest.approx(
            [each.logprob for each in choice.logprobs.content], abs=1e-4
        )
        reasons = [each.finish_reason for each in mine if each.finish_reason]
        assert reasons == [choice.finish_reason]
        assert mine[-1].finish_reason


def test_pieces_come_before_the_end_and_hold_whole_characters(
    client: openai.OpenAI, trained: Trained
) -> None:
    whole, pieces = both(client, model=trained.path, messages=ASK_JSON, temperature=0)
    texts = [each.delta.content for piece in pieces for each in piece.choices]
    assert whole.choices[0].message.content == content_of(pieces) == JSON
    assert len([each for each in texts if each]) > 1
    assert not any("\ufffd" in (each or "") for each in texts)


def test_stops_are_never_shown(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=40, temperature=0
    )
    text = plain.choices[0].message.content or ""
    place = next(i for i in range(3, len(text) - 2) if text[i : i + 2].isascii())
    whole, pieces = both(client, temperature=0, stop=[text[place : place + 2]])
    assert content_of(pieces) == whole.choices[0].message.content
    assert len(content_of(pieces)) <= place


@pytest.mark.parametrize("has_usage", [False, True])
def test_usage_comes_last_if_it_is_requested(client: openai.OpenAI, has_usage: bool) -> None:
    options = {"stream_options": {"include_usage": has_usage}}
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4, **options}
    pieces = list(client.chat.completions.create(**asked, stream=True))
    assert all(piece.usage is None for piece in pieces[:-1])
    if has_usage:
        assert pieces[-1].choices == []
        assert pieces[-1].usage is not None
        assert pieces[-1].usage.prompt_tokens > 0
        assert 0 < pieces[-1].usage.completion_tokens <= 4
    else:
        assert pieces[-1].choices[0].finish_reason


def test_calls_come_whole_and_text_is_not_held_back_for_ever(
    client: openai.OpenAI, trained: Trained
) -> None:
    asked = {"model": trained.path, "temperature": 0, "max_tokens": 120, "tools": [ADD]}
    whole, pieces = both(client, messages=ASK_CALL, **asked)
    deltas = [each.delta for piece in pieces for each in piece.choices]
    (calls,) = [each.tool_calls for each in deltas if each.tool_calls]
    wanted = whole.choices[0].message.tool_calls
    assert [(each.index, each.function.arguments) for each in calls] == [
        (place, each.function.arguments) for place, each in enumerate(wanted)
    ]
    assert content_of(pieces) == ""
    assert pieces[-1].choices[0].finish_reason == "tool_calls"
    for asked["model"] in (MODEL, trained.path):
        whole, pieces = both(client, messages=MESSAGES, **asked)
        if not whole.choices[0].message.tool_calls:
            assert content_of(pieces) == whole.choices[0].message.content


def test_json_that_does_not_fit_is_refused_at_the_end(client: openai.OpenAI) -> None:
    whole, pieces = both(client, temperature=0, response_format={"type": "json_object"})
    refusals = [each.delta.refusal for piece in pieces for each in piece.choices]
    assert [each for each in refusals if each] == [whole.choices[0].message.refusal]
    assert content_of(pieces) == whole.choices[0].message.content


def test_completions_in_pieces(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": ["ab", "日本"], "n": 2, "seed": 3}
    whole = client.completions.create(**asked, logprobs=1)
    pieces = list(client.completions.create(**asked, logprobs=1, stream=True))
    for choice in whole.choices:
        mine = [each for piece in pieces for each in piece.choices if each.index == choice.index]
        assert "".join(each.text for each in mine) == choice.text
        for name in ("tokens", "text_offset"):
            given = [x for each in mine if each.logprobs for x in getattr(each.logprobs, name)]
            assert given == getattr(choice.logprobs, name)
        assert mine[-1].finish_reason == choice.finish_reason


def test_echo_comes_first(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": "ab", "echo": True, "temperature": 0}
    for count in (0, 5):
        whole = client.completions.create(**asked, max_tokens=count)
        pieces = list(client.completions.create(**asked, max_tokens=count, stream=True))
        assert pieces[0].choices[0].text == "ab"
        assert "".join(each.choices[0].text for each in pieces) == whole.choices[0].text
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**asked, logprobs=1, stream=True)
    assert refused.value.param == "stream"


def test_what_the_engine_refuses_is_an_error_and_no_stream(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "stream": True}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked, logit_bias={"99999": 1})
    assert refused.value.param == "logit_bias"


def test_the_async_client_streams(server: EmbeddedServer, client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 20}
    wanted = client.chat.completions.create(**asked, temperature=0).choices[0].message.content

    async def ask() -> list[str]:
        url = server.base_url + "/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=server.api_key) as opened:

            async def one() -> str:
                stream = await opened.chat.completions.create(**asked, temperature=0, stream=True)
                return content_of([piece async for piece in stream])

            return await asyncio.gather(*(one() for _ in range(5)))

    assert set(asyncio.run(ask())) == {wanted}


def test_the_bytes_are_those_of_server_sent_events(server: EmbeddedServer) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 2, "stream": True}
    bearer = {"Authorization": f"Bearer {server.api_key}"}
    answer = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, headers=bearer)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(each.startswith("data: {") for each in events[:-2])
