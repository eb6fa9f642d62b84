"""The work itself, made from seeds: the same numbers for every side. Standard library only."""

from __future__ import annotations

import random

VOCAB = (10, 30_000)
"""Token ids are drawn from here: no special token, and an id every model of the size has."""

Row = tuple[list[int], list[float]]
"""Tokens of a sequence, one more than positions, and the weight of each position."""


def tokens(count: int, seed: int) -> list[int]:
    """Random token ids."""
    dice = random.Random(seed)
    return [dice.randrange(*VOCAB) for _ in range(count)]


def even_rows(count: int, length: int, seed: int = 0) -> list[Row]:
    """Sequences of one length, every position weighted."""
    return [(tokens(length + 1, 1000 * seed + i), [1.0] * length) for i in range(count)]


def conversations(count: int, seed: int = 0) -> list[Row]:
    """Sequences of 20 to 500 tokens as they come, the loss on their last quarter: the answer."""
    dice = random.Random(seed)
    rows = []
    for i in range(count):
        length = dice.randint(20, 500)
        answer = max(1, length // 4)
        weights = [0.0] * (length - answer) + [1.0] * answer
        rows.append((tokens(length + 1, 1000 * seed + i), weights))
    return rows
