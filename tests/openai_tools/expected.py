"""The chat that each program sends, and the answer that our own client gets to it."""

from __future__ import annotations

import tinkex
from tinkex import types
from tinkex.tokenizers.tokenizer import Tokenizer

SEED = 7
MAX_TOKENS = 20
CHAT = [{"role": "user", "content": "Grüße an 日本"}]


def answer(sampler: tinkex.SamplingClient, tokenizer: Tokenizer) -> types.SampledSequence:
    """What the sampler answers to the chat with that seed."""
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)
    params = types.SamplingParams(max_tokens=MAX_TOKENS, seed=SEED)
    result = sampler.sample(types.ModelInput.from_ints(prompt), 1, params).result(60)
    return result.sequences[0]


def text(sampler: tinkex.SamplingClient, tokenizer: Tokenizer) -> str:
    """That answer as text."""
    found = tokenizer.decode(answer(sampler, tokenizer).tokens, skip_special_tokens=True)
    assert found  # an empty answer would equal that of a program which lost it
    return found
