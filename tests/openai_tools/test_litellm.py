"""LiteLLM against a real server: whole and streamed answers, and errors as its own types.

Skipped without LiteLLM: `make test-openai` runs this folder where it is installed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tinkex
from tests.openai_tools.conftest import MODEL, Endpoint
from tests.openai_tools.expected import CHAT, MAX_TOKENS, SEED, answer, text
from tinkex.tokenizers.tokenizer import Tokenizer

litellm = pytest.importorskip(
    "litellm", reason="needs LiteLLM: make test-openai installs it", exc_type=ModuleNotFoundError
)

pytestmark = pytest.mark.filterwarnings("default")  # it and pydantic warn of LiteLLM's own types

TOO_LONG = [{"role": "user", "content": "word " * 1000}]


def arguments(endpoint: Endpoint, **changes: Any) -> dict[str, Any]:
    return {
        "model": f"openai/{MODEL}",
        "api_base": endpoint.url,
        "api_key": endpoint.key,
        "messages": CHAT,
        "max_tokens": MAX_TOKENS,
        "seed": SEED,
        "max_retries": 0,
        **changes,
    }


def test_a_whole_answer_is_that_of_our_own_api(
    endpoint: Endpoint, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    said = litellm.completion(**arguments(endpoint, logprobs=True))
    sequence = answer(sampler, tokenizer)
    assert said.choices[0].message.content == text(sampler, tokenizer)
    assert said.usage.completion_tokens == len(sequence.tokens)
    entries = said.choices[0].logprobs.content
    assert [each.logprob for each in entries] == pytest.approx(sequence.logprobs, abs=1e-4)


def test_a_stream_is_the_whole_answer(
    endpoint: Endpoint, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    options = {"include_usage": True}
    pieces = list(litellm.completion(**arguments(endpoint, stream=True, stream_options=options)))
    texts = [piece.choices[0].delta.content for piece in pieces if piece.choices]
    assert "".join(each or "" for each in texts) == text(sampler, tokenizer)
    assert sum(1 for each in texts if each) > 1
    whole = litellm.stream_chunk_builder(pieces)
    assert whole.usage.completion_tokens == len(answer(sampler, tokenizer).tokens)


def test_an_asynchronous_stream(
    endpoint: Endpoint, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    async def collected() -> str:
        stream = await litellm.acompletion(**arguments(endpoint, stream=True))
        return "".join([piece.choices[0].delta.content or "" async for piece in stream])

    assert asyncio.run(collected()) == text(sampler, tokenizer)


def test_a_completion_of_plain_text(
    endpoint: Endpoint, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)
    asked = arguments(endpoint, model=f"text-completion-openai/{MODEL}", prompt=[prompt])
    del asked["messages"]
    said = litellm.text_completion(**asked)
    assert said.choices[0].text == text(sampler, tokenizer)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"api_key": "tml-wrong"}, "AuthenticationError", "key"),
        ({"model": "openai/absent"}, "NotFoundError", "absent"),
        ({"messages": TOO_LONG}, "ContextWindowExceededError", "context"),
        ({"temperature": -1.0}, "BadRequestError", "temperature"),
    ],
)
def test_errors_are_those_of_litellm(
    endpoint: Endpoint, changes: dict[str, Any], error: str, said: str
) -> None:
    with pytest.raises(getattr(litellm, error), match=said):
        litellm.completion(**arguments(endpoint, **changes))
