"""Choosing the next token from logits: temperature, top-k, top-p, and one number per sequence.

A token is where a uniform number falls in the cumulative distribution. The numbers come from the
sequence's own stream, one per token, so a seeded sequence does not depend on its neighbours.

Shapes: N sequences · V vocabulary · B blocks of the vocabulary · W width of a block · K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Choice", "ChoiceRule", "choose", "stream", "top_logprobs"]

_BLOCK = 256
_LEAST_TEMPERATURE = 1e-30  # dividing by less would overflow float32


@dataclass(frozen=True, slots=True)
class ChoiceRule:
    """How one sequence chooses. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0

    @property
    def divisor(self) -> float:
        """What logits are divided by; greedy choice reports untempered logprobs."""
        return max(self.temperature, _LEAST_TEMPERATURE) if self.temperature else 1.0

    def truncates(self, vocab_size: int) -> bool:
        """Whether some tokens can never be chosen."""
        return 0 < self.top_k < vocab_size or self.top_p < 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen tokens, their logprobs, and the tempered logits both came from."""

    token_N: Tensor
    logprob_N: Tensor
    tempered_NV: Tensor
    lse_N: Tensor


def stream(seed: int | None, *path: int) -> np.random.Generator:
    """Sample `path`'s own random numbers: fixed by the seed, or fresh without one."""
    if seed is None:
        return np.random.Generator(np.random.Philox())
    key = np.random.SeedSequence(entropy=seed % 2**64, spawn_key=path)
    return np.random.Generator(np.random.Philox(key))


def choose(logits_NV: Tensor, rules: Sequence[ChoiceRule], uniforms: Sequence[float]) -> Choice:
    """One token per row. Overwrites the logits."""
    device, vocab_size = logits_NV.device, logits_NV.shape[1]
    divisors = [rule.divisor for rule in rules]
    if any(divisor != 1.0 for divisor in divisors):
        logits_NV.div_(torch.tensor(divisors, device=device, dtype=logits_NV.dtype)[:, None])
    lse_N = torch.logsumexp(logits_NV, dim=-1)
    token_N = torch.empty(len(rules), dtype=torch.int64, device=device)
    uniform_N = torch.tensor(uniforms, dtype=torch.float64, device=device)
    greedy = [i for i, rule in enumerate(rules) if rule.temperature == 0]
    cut = [i for i, r in enumerate(rules) if r.temperature > 0 and r.truncates(vocab_size)]
    free = sorted(set(range(len(rules))) - set(greedy) - set(cut))
    if greedy:
        token_N[greedy] = logits_NV[greedy].argmax(dim=-1)
    if free:
        probs_NV = torch.exp(_rows(logits_NV, free) - lse_N[free, None])
        token_N[free] = _invert(probs_NV, uniform_N[free])
    for i in cut:
        token_N[i] = _choose_truncated(logits_NV[i], rules[i], float(uniform_N[i]))
    logprob_N = logits_NV.gather(1, token_N[:, None]).squeeze(1) - lse_N
    return Choice(token_N, logprob_N, logits_NV, lse_N)


def top_logprobs(logits_NV: Tensor, lse_N: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of each row and their logprobs, best first."""
    values_NK, ids_NK = torch.topk(logits_NV, k, dim=-1)
    return ids_NK, values_NK - lse_N[:, None]


def _rows(logits_NV: Tensor, wanted: list[int]) -> Tensor:
    return logits_NV if len(wanted) == logits_NV.shape[0] else logits_NV[wanted]


def _invert(probs_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """Where each uniform number falls: first the block of the vocabulary, then the token in it."""
    vocab_size = probs_NV.shape[1]
    width = min(_BLOCK, vocab_size)
    padded_NV = F.pad(probs_NV, (0, -vocab_size % width)) if vocab_size % width else probs_NV
    blocks_NBW = torch.unflatten(padded_NV, 1, (-1, width))
    ends_NB = blocks_NBW.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    goal_N = uniform_N * ends_NB[:, -1]
    block_N = _first_above(ends_NB, goal_N)
    rows_N = torch.arange(len(uniform_N), device=probs_NV.device)
    before_N = torch.where(block_N > 0, ends_NB[rows_N, (block_N - 1).clamp(min=0)], 0.0)
    inner_NW = blocks_NBW[rows_N, block_N].cumsum(dim=-1, dtype=torch.float64)
    token_N = block_N * width + _first_above(inner_NW, goal_N - before_N)
    return token_N.clamp(max=vocab_size - 1)


def _first_above(ends: Tensor, goal_N: Tensor) -> Tensor:
    """The first place of each row whose running sum is above the goal."""
    found_N = torch.searchsorted(ends, goal_N[:, None], right=True).squeeze(1)
    return found_N.clamp(max=ends.shape[1] - 1)


def _choose_truncated(tempered_V: Tensor, rule: ChoiceRule, uniform: float) -> Tensor:
    """Top-k first, then the smallest set of tokens that holds top_p of what is left."""
    keep = min(rule.top_k, tempered_V.numel()) if rule.top_k > 0 else tempered_V.numel()
    values_K, ids_K = torch.topk(tempered_V, keep)
    ends_K = torch.softmax(values_K.double(), dim=-1).cumsum(dim=-1)
    if rule.top_p < 1.0:
        inside = int((ends_K < rule.top_p).sum()) + 1
        ends_K, ids_K = ends_K[:inside], ids_K[:inside]
    place = int(torch.searchsorted(ends_K, uniform * float(ends_K[-1]), right=True))
    return ids_K[min(place, len(ids_K) - 1)]
