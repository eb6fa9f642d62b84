"""Chat completions through OpenAI's own client, against what our client gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest

import tinkex
from tests.server.openai.conftest import ASK_JSON, JSON, MODEL, PLAIN, Trained
from tinkex import types
from tinkex.server.embedded import EmbeddedServer
from tinkex.tokenizers.tokenizer import Tokenizer

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


def chat(client: openai.OpenAI, **changes: Any) -> Any:
    """The answer to a short conversation."""
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, **changes}
    return client.chat.completions.create(**asked)


def prompt_of(tokenizer: Tokenizer, messages: Any = MESSAGES, **variables: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, **variables
    )
    return ids


def test_tokens_and_logprobs_are_those_of_our_own_api(
    client: openai.OpenAI, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    answer = chat(client, n=3, seed=7, temperature=1.3, top_p=0.9, logprobs=True, top_logprobs=2)
    params = types.SamplingParams(max_tokens=12, seed=7, temperature=1.3, top_p=0.9)
    prompt = types.ModelInput.from_ints(prompt_of(tokenizer))
    ours = sampler.sample(prompt, 3, params, topk_sample_logprobs=2).result(60)
    assert answer.usage.prompt_tokens == prompt.length
    assert answer.usage.completion_tokens == sum(len(each.tokens) for each in ours.sequences)
    assert answer.usage.total_tokens == prompt.length + answer.usage.completion_tokens
    for choice, sequence in zip(answer.choices, ours.sequences, strict=True):
        entries = choice.logprobs.content
        assert [each.logprob for each in entries] == pytest.approx(sequence.logprobs, abs=1e-4)
        assert [bytes(each.bytes) for each in entries] == [
            _bytes_of(tokenizer, token) for token in sequence.tokens
        ]
        for entry, pairs in zip(entries, sequence.topk_logprobs or (), strict=True):
            assert [bytes(top.bytes) for top in entry.top_logprobs] == [
                _bytes_of(tokenizer, token) for token, _ in pairs or ()
            ]
        assert choice.message.content == tokenizer.decode(sequence.tokens, skip_special_tokens=True)
        assert choice.finish_reason == sequence.stop_reason
    assert len({choice.message.content for choice in answer.choices}) == 3


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    """The tiny model's tokens are bytes, then special ones, then ids without any."""
    return bytes([token]) if token < 256 else tokenizer.decode([token]).encode()


def test_a_seed_repeats_and_cached_tokens_are_counted(client: openai.OpenAI) -> None:
    asked = [{"role": "user", "content": "the same long question " * 10}]
    first, again = (chat(client, messages=asked, seed=1, temperature=1) for _ in range(2))
    assert first.choices[0].message.content == again.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    assert first.id != again.id
    assert first.id.startswith("chatcmpl-")
    assert first._request_id == first.id.removeprefix("chatcmpl-")


def test_a_stop_ends_the_answer_and_is_not_in_it(client: openai.OpenAI) -> None:
    whole = chat(client, temperature=0, max_tokens=40).choices[0].message.content
    stop = next(char for char in whole[5:] if char.isascii() and char.isprintable())
    cut = chat(client, temperature=0, max_tokens=40, stop=["never this", stop]).choices[0]
    assert cut.message.content == whole.partition(stop)[0]
    assert cut.finish_reason == "stop"
    assert chat(client, temperature=0, stop=[]).choices[0].finish_reason in {"stop", "length"}


def test_every_parameter_reaches_the_sampler(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    def content(**changes: Any) -> str:
        asked = {"temperature": 0, "max_tokens": 30, **changes}
        return str(chat(client, **asked).choices[0].message.content)

    plain = content()
    assert content(frequency_penalty=2) != plain
    assert content(presence_penalty=2) != plain
    assert content(extra_body={"repetition_penalty": 2}) != plain
    assert content(logit_bias={"77": 100}) == "M" * 30
    hot = {"temperature": 2, "seed": 3}
    assert content(**hot, extra_body={"top_k": 1}) == plain
    assert content(**hot, extra_body={"min_p": 1}) == plain
    assert content(**hot, top_p=1e-6) == plain
    assert content(**hot) != plain


def test_max_completion_tokens_is_the_newer_name(client: openai.OpenAI) -> None:
    asked = {"max_tokens": openai.omit, "max_completion_tokens": 3, "temperature": 0}
    assert chat(client, **asked).usage.completion_tokens <= 3


def test_variables_of_the_template_are_set(
    client: openai.OpenAI, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    extra = {"chat_template_kwargs": {"thinking": True}}
    answer = chat(client, extra_body=extra, temperature=0)
    wanted = prompt_of(tokenizer, thinking=True)
    assert answer.usage.prompt_tokens == len(wanted) == len(prompt_of(tokenizer)) + len("<think>")


def test_parts_roles_and_fields_that_change_nothing(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be "}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "user", "content": "c", "name": "x"},
    ]
    plain = [
        {"role": "system", "content": "be "},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "c"},
    ]
    harmless = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    answer = chat(client, messages=messages, **harmless)
    assert answer.usage.prompt_tokens == len(prompt_of(tokenizer, plain))


def test_the_async_client_gets_the_same(server: EmbeddedServer, client: openai.OpenAI) -> None:
    async def ask() -> list[str]:
        url = server.base_url + "/oai/api/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=server.api_key) as opened:
            asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12}
            calls = [opened.chat.completions.create(**asked, temperature=0) for _ in range(4)]
            return [each.choices[0].message.content for each in await asyncio.gather(*calls)]

    assert set(asyncio.run(ask())) == {chat(client, temperature=0).choices[0].message.content}


def test_json_that_fits_and_json_that_does_not(client: openai.OpenAI, trained: Trained) -> None:
    def ask(schema: dict[str, Any] | None, messages: Any = ASK_JSON) -> Any:
        wanted: dict[str, Any] = {"type": "json_object"}
        if schema is not None:
            wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        asked = {"model": trained.path, "messages": messages, "temperature": 0}
        return chat(client, **asked, response_format=wanted).choices[0].message

    assert (ask(None).content, ask(None).refusal) == (JSON, None)
    assert ask({"type": "object", "properties": {"a": {"type": "integer"}}}).refusal is None
    wrong = ask({"type": "object", "required": ["b"]})
    assert wrong.content == JSON
    assert "does not have all of ['b']" in wrong.refusal
    assert "not valid JSON" in ask(None, MESSAGES).refusal


def test_a_model_without_a_template_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no chat template") as refused:
        chat(client, model=PLAIN)
    assert refused.value.code == "no_chat_template"
    answer = client.completions.create(model=PLAIN, prompt="hello", max_tokens=3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 3


def test_two_tenants_have_sessions_of_their_own(
    make_client: Callable[..., openai.OpenAI], client: openai.OpenAI
) -> None:
    other = make_client(new_tenant=True)
    one, two = (chat(each, temperature=0) for each in (client, other))
    assert one.choices[0].message.content == two.choices[0].message.content
    assert two.usage.prompt_tokens_details.cached_tokens == 0, "caches are not shared"
