"""LangChain's chat model for OpenAI against a real server.

Skipped without LangChain: `make test-openai` runs this folder where it is installed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tinkex
from tests.openai_tools.conftest import MODEL, Endpoint
from tests.openai_tools.expected import CHAT, MAX_TOKENS, SEED, answer, text
from tinkex.tokenizers.tokenizer import Tokenizer

openai = pytest.importorskip("openai", reason="needs OpenAI's client")
langchain_openai = pytest.importorskip(
    "langchain_openai",
    reason="needs LangChain: make test-openai installs it",
    exc_type=ModuleNotFoundError,
)


@pytest.fixture
def chat(endpoint: Endpoint) -> Any:
    return langchain_openai.ChatOpenAI(
        model=MODEL,
        base_url=endpoint.url,
        api_key=endpoint.key,
        max_tokens=MAX_TOKENS,
        seed=SEED,
        temperature=1.0,
        max_retries=0,
        stream_usage=True,
    )


def test_an_answer_is_that_of_our_own_api(
    chat: Any, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    said = chat.bind(logprobs=True).invoke(CHAT)
    sequence = answer(sampler, tokenizer)
    assert said.content == text(sampler, tokenizer)
    assert said.usage_metadata["output_tokens"] == len(sequence.tokens)
    entries = said.response_metadata["logprobs"]["content"]
    assert [each["logprob"] for each in entries] == pytest.approx(sequence.logprobs, abs=1e-4)


def test_a_stream_is_the_whole_answer(
    chat: Any, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    pieces = list(chat.stream(CHAT))
    assert "".join(piece.content for piece in pieces) == text(sampler, tokenizer)
    assert sum(1 for piece in pieces if piece.content) > 1
    counted = [piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata]
    assert sum(counted) == len(answer(sampler, tokenizer).tokens)


def test_asynchronous_answers_in_a_batch_and_in_a_stream(
    chat: Any, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    async def collected() -> list[str]:
        batch = [said.content for said in await chat.abatch([CHAT] * 4)]
        streamed = "".join([piece.content async for piece in chat.astream(CHAT)])
        return [*batch, streamed]

    assert asyncio.run(collected()) == [text(sampler, tokenizer)] * 5


def test_a_model_that_is_not_there_is_openais_error(chat: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="absent"):
        chat.bind(model="absent").invoke(CHAT)
