"""The workload, generated from seeds: the same numbers for every side. Standard library only."""

from __future__ import annotations

import random
from typing import Any

VOCAB = (10, 30_000)
"""Range of token ids: no special token, and ids that every model of the size has."""

Row = tuple[list[int], list[float]]
"""Tokens of a sequence, one more than positions, and the weight of each position."""

Request = dict[str, Any]
"""A sampling request: at, tokens, samples, max_tokens, adapter (its number)."""


def tokens(count: int, seed: int) -> list[int]:
    """Returns random token ids."""
    dice = random.Random(seed)
    return [dice.randrange(*VOCAB) for _ in range(count)]


def even_rows(count: int, length: int, seed: int = 0) -> list[Row]:
    """Returns sequences of one length, every position weighted."""
    return [(tokens(length + 1, 1000 * seed + i), [1.0] * length) for i in range(count)]


def conversations(count: int, seed: int = 0) -> list[Row]:
    """Returns sequences of 20 to 500 tokens in random order, the loss on their last
    quarter: the answer."""
    dice = random.Random(seed)
    rows = []
    for i in range(count):
        length = dice.randint(20, 500)
        answer = max(1, length // 4)
        weights = [0.0] * (length - answer) + [1.0] * answer
        rows.append((tokens(length + 1, 1000 * seed + i), weights))
    return rows


def sample_request(
    prompt: list[int], max_tokens: int, samples: int = 1, at: float = 0.0, adapter: int = 0
) -> Request:
    """Returns one request, to be sent `at` seconds after the start."""
    return {
        "at": at,
        "tokens": prompt,
        "samples": samples,
        "max_tokens": max_tokens,
        "adapter": adapter,
    }


def traffic(count: int, per_second: float, adapters: int, seed: int = 0) -> list[Request]:
    """Returns requests as they arrive: prompts of 16 to 400 tokens, answers of 8 to
    128, mixed adapters."""
    dice = random.Random(seed)
    arrivals = sorted(dice.uniform(0, count / per_second) for _ in range(count))
    return [
        sample_request(
            tokens(dice.randint(16, 400), 1000 * seed + i),
            dice.randint(8, 128),
            at=at,
            adapter=dice.randrange(adapters),
        )
        for i, at in enumerate(arrivals)
    ]
