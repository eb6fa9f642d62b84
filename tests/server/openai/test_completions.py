"""Text completions: kinds of prompts, classic logprobs, and prompts scored by `echo`."""

from __future__ import annotations

from typing import Any

import openai
import pytest

import tinkex
from tests.server.openai.conftest import MODEL
from tinkex import types
from tinkex.tokenizers.tokenizer import Tokenizer

PROMPT = "Grüße an 日本"


def complete(client: openai.OpenAI, prompt: Any = PROMPT, **changes: Any) -> Any:
    """The answer to a short prompt."""
    asked: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 6, **changes}
    return client.completions.create(**asked)


def test_tokens_and_logprobs_are_those_of_our_own_api(
    client: openai.OpenAI, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    answer = complete(client, n=2, seed=5, logprobs=3, max_tokens=20)
    prompt = types.ModelInput.from_ints(tokenizer.encode(PROMPT))
    params = types.SamplingParams(max_tokens=20, seed=5)
    ours = sampler.sample(prompt, 2, params, topk_sample_logprobs=3).result(60)
    for choice, sequence in zip(answer.choices, ours.sequences, strict=True):
        assert choice.text == tokenizer.decode(sequence.tokens, skip_special_tokens=True)
        scores = choice.logprobs
        assert scores.token_logprobs == pytest.approx(sequence.logprobs, abs=1e-4)
        assert len(scores.tokens) == len(scores.text_offset) == len(sequence.tokens)
        for token, top in zip(scores.tokens, scores.top_logprobs, strict=True):
            assert 3 <= len(top) <= 4
            assert token in top
    assert answer.id.startswith("cmpl-")


def test_prompts_as_texts_and_as_ids(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    texts = ["one", "and another"]
    ids = [tokenizer.encode(each) for each in texts]
    by_text = complete(client, texts, temperature=0, n=2)
    assert [each.index for each in by_text.choices] == [0, 1, 2, 3]
    said = [each.text for each in by_text.choices]
    assert said[0] == said[1]
    assert [each.text for each in complete(client, ids, temperature=0, n=2).choices] == said
    assert complete(client, ids[1], temperature=0).choices[0].text == said[2]
    assert by_text.usage.prompt_tokens == sum(map(len, ids))


def test_sixteen_tokens_unless_it_says_more(client: openai.OpenAI) -> None:
    answer = complete(client, temperature=0, max_tokens=openai.omit)
    assert answer.usage.completion_tokens <= 16


@pytest.mark.parametrize("as_ids", [False, True])
def test_echo_scores_the_prompt_as_our_prompt_logprobs_do(
    client: openai.OpenAI, sampler: tinkex.SamplingClient, tokenizer: Tokenizer, as_ids: bool
) -> None:
    ids = tokenizer.encode(PROMPT)
    asked = ids if as_ids else PROMPT
    answer = complete(client, asked, max_tokens=0, echo=True, logprobs=2)
    ours = sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result(60)
    choice, scores = answer.choices[0], answer.choices[0].logprobs
    assert choice.text == PROMPT
    assert answer.usage.completion_tokens == 0
    assert scores.token_logprobs[0] is None
    assert scores.top_logprobs[0] is None
    assert scores.token_logprobs[1:] == pytest.approx(ours[1:], abs=1e-4)
    assert "".join(each for each in scores.tokens if not each.startswith("bytes:")) == "Gre an "
    # Every token of a character begins where the character does.
    places = [len(bytes(ids[:count]).decode(errors="ignore")) for count in range(len(ids))]
    assert scores.text_offset == places


def test_echo_before_an_answer_has_all_tokens(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    plain = complete(client, temperature=0, logprobs=0)
    both = complete(client, temperature=0, logprobs=0, echo=True)
    assert both.choices[0].text == PROMPT + plain.choices[0].text
    count = len(tokenizer.encode(PROMPT))
    assert both.choices[0].logprobs.tokens[count:] == plain.choices[0].logprobs.tokens
    assert both.choices[0].logprobs.text_offset[count] == len(PROMPT)
    assert complete(client, echo=True).choices[0].logprobs is None


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [1, "a"], [[1], "a"], [1, -1], 7, [True], [2**40], {"a": 1}]
)
def test_prompts_that_are_none(client: openai.OpenAI, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, prompt)
    assert refused.value.param == "prompt"
