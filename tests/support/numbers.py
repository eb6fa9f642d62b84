"""The numbers of a model that does not exist.

Every value is a multiple of a power of two, so float32 keeps it exactly, and sums and means of them
can be compared with `==`. Each optimizer step halves all logprobs: training visibly helps, and a
snapshot taken before a step is told from one taken after it.
"""

from __future__ import annotations

from collections.abc import Sequence

VOCABULARY = 1000
EOS = 999


def logprob(token: int, step: int = 0) -> float:
    """The logprob of a token after so many optimizer steps, the same in every context."""
    return -(1 + (token * 37 % 64) / 64) * 0.5**step


def sampled_tokens(prompt: Sequence[int], seed: int, index: int, count: int) -> list[int]:
    """The tokens that sample number `index` continues the prompt with; never the end token."""
    start = sum((place + 1) * token for place, token in enumerate(prompt)) + 7 * seed + 13 * index
    return [(start + 17 * place) % EOS for place in range(count)]


def top_tokens(token: int, k: int, step: int = 0) -> list[tuple[int, float]]:
    """The k most likely tokens where `token` stands, best first."""
    near = [(token + offset) % VOCABULARY for offset in range(k)]
    return sorted(((t, logprob(t, step)) for t in near), key=lambda pair: -pair[1])
