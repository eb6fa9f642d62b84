"""Choosing the next token from logits: temperature, top-k, top-p, and one number per sequence.

What the other sampling parameters do is in `logits_processors`.

A token is where a uniform number falls in the cumulative distribution. The numbers come from the
sequence's own stream, one per token, so a seeded sequence does not depend on its neighbours.

Shapes: N sequences · V vocabulary · B blocks of the vocabulary · W width of a block · K candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.sampling.logits_processors import BUILTIN, Pipeline, Row
from tinkex.types.sampling import SamplingParams

__all__ = ["Choice", "choose", "stream", "top_logprobs"]

_BLOCK = 256
_LEAST_TEMPERATURE = 1e-30  # dividing by less would overflow float32


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen tokens, their logprobs, and the tempered logits both came from."""

    token_N: Tensor
    logprob_N: Tensor
    tempered_NV: Tensor
    lse_N: Tensor


def stream(seed: int | None, *path: int) -> np.random.Generator:
    """Returns the random numbers of sample `path`: fixed by the seed, or fresh without one."""
    if seed is None:
        return np.random.Generator(np.random.Philox())
    key = np.random.SeedSequence(entropy=seed % 2**64, spawn_key=path)
    return np.random.Generator(np.random.Philox(key))


def choose(
    logits_NV: Tensor,
    rules: Sequence[SamplingParams],
    uniforms: Sequence[float],
    processed: Sequence[Row] = (),
    pipeline: Pipeline = BUILTIN,
) -> Choice:
    """Returns one token per row; the pipeline applies to rows in `processed`.
    Overwrites the logits."""
    device, vocab_size = logits_NV.device, logits_NV.shape[1]
    if processed:
        pipeline.change_logits(logits_NV, processed)
    divisors = [_divisor(rule.temperature) for rule in rules]
    if any(divisor != 1.0 for divisor in divisors):
        logits_NV.div_(torch.tensor(divisors, device=device, dtype=logits_NV.dtype)[:, None])
    probs_NV = torch.softmax(logits_NV, dim=-1)
    allowed_NV = pipeline.filtered(probs_NV, processed) if processed else probs_NV
    uniform_N = torch.tensor(uniforms, dtype=torch.float64, device=device)
    token_N = torch.empty(len(rules), dtype=torch.int64, device=device)
    for kind, rows in _by_kind(rules, vocab_size).items():
        some_NV, some_uniform_N = _rows(allowed_NV, rows), _rows(uniform_N, rows)
        if kind == "greedy":
            token_N[rows] = _likeliest(_rows(logits_NV, rows))
        elif kind == "free":
            token_N[rows] = _invert(some_NV, some_uniform_N)
        else:
            some_rules = [rules[row] for row in rows]
            token_N[rows] = _choose_truncated(some_NV, some_rules, some_uniform_N)
    logprob_N = probs_NV.gather(1, token_N[:, None]).squeeze(1).log_()
    lse_N = logits_NV.gather(1, token_N[:, None]).squeeze(1) - logprob_N
    return Choice(token_N, logprob_N, logits_NV, lse_N)


def top_logprobs(logits_NV: Tensor, lse_N: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k most likely tokens of each row and their logprobs, best first."""
    values_NK, ids_NK = torch.topk(logits_NV, k, dim=-1)
    return ids_NK, values_NK - lse_N[:, None]


def _divisor(temperature: float) -> float:
    """Returns the divisor of the logits; greedy choice reports untempered logprobs."""
    return max(temperature, _LEAST_TEMPERATURE) if temperature else 1.0


def _by_kind(rules: Sequence[SamplingParams], vocab_size: int) -> dict[str | int, list[int]]:
    """Returns the rows that are chosen together: greedy ones, unfiltered ones, those
    of one top_k."""
    kinds: dict[str | int, list[int]] = {}
    for row, rule in enumerate(rules):
        kind: str | int = "free"
        if rule.temperature == 0:
            kind = "greedy"
        elif 0 < rule.top_k < vocab_size:
            kind = rule.top_k
        elif rule.top_p < 1.0:
            kind = vocab_size
        kinds.setdefault(kind, []).append(row)
    return kinds


def _rows(some: Tensor, wanted: list[int]) -> Tensor:
    return some if len(wanted) == some.shape[0] else some[wanted]


def _likeliest(logits_NV: Tensor) -> Tensor:
    """Returns the index of each row's maximum: first its block, then the index in it. Torch's own
    argmax is not vectorized and takes ten times as long."""
    blocks_NBW = _blocks(logits_NV, -math.inf)
    block_N = blocks_NBW.amax(dim=-1).argmax(dim=-1)
    rows_N = torch.arange(len(block_N), device=logits_NV.device)
    token_N = block_N * blocks_NBW.shape[-1] + blocks_NBW[rows_N, block_N].argmax(dim=-1)
    return token_N.clamp(max=logits_NV.shape[1] - 1)


def _blocks(some_NV: Tensor, fill: float) -> Tensor:
    """Returns the vocabulary in blocks of equal width."""
    vocab_size = some_NV.shape[1]
    width = min(_BLOCK, vocab_size)
    if vocab_size % width:
        some_NV = F.pad(some_NV, (0, -vocab_size % width), value=fill)
    return torch.unflatten(some_NV, 1, (-1, width))


def _invert(probs_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """Returns the token at each uniform number: first its block of the vocabulary, then the
    token in it."""
    vocab_size = probs_NV.shape[1]
    blocks_NBW = _blocks(probs_NV, 0.0)
    ends_NB = blocks_NBW.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    goal_N = uniform_N * ends_NB[:, -1]
    block_N = _first_above(ends_NB, goal_N)
    rows_N = torch.arange(len(uniform_N), device=probs_NV.device)
    before_N = torch.where(block_N > 0, ends_NB[rows_N, (block_N - 1).clamp(min=0)], 0.0)
    inner_NW = blocks_NBW[rows_N, block_N].cumsum(dim=-1, dtype=torch.float64)
    # A block's sum rounds otherwise than its running sum: the goal may lie above all of the latter.
    # Then it is the last token with a probability, never one that a filter has set to 0.
    last_N = (inner_NW < inner_NW[:, -1:]).sum(dim=-1)
    inner_N = torch.minimum(_first_above(inner_NW, goal_N - before_N), last_N)
    return (block_N * blocks_NBW.shape[-1] + inner_N).clamp(max=vocab_size - 1)


def _first_above(ends: Tensor, goal_N: Tensor) -> Tensor:
    """Returns the first index of each row whose running sum exceeds the goal."""
    found_N = torch.searchsorted(ends, goal_N[:, None], right=True).squeeze(1)
    return found_N.clamp(max=ends.shape[1] - 1)


def _choose_truncated(
    probs_NV: Tensor, rules: Sequence[SamplingParams], uniform_N: Tensor
) -> Tensor:
    """Draws from the top_k tokens, the same k for all rows, then from the fewest
    that hold top_p."""
    vocab_size = probs_NV.shape[1]
    top_p_N = torch.tensor([r.top_p for r in rules], dtype=torch.float64, device=probs_NV.device)
    is_top_k = 0 < rules[0].top_k < vocab_size
    keep = rules[0].top_k if is_top_k else _most_inside(probs_NV, top_p_N)
    probs_NK, ids_NK = torch.topk(probs_NV, keep)
    ends_NK = probs_NK.cumsum(dim=-1, dtype=torch.float64)
    # Without top_k all tokens are left, also those that were not sorted.
    whole_N = ends_NK[:, -1] if is_top_k else probs_NV.sum(dim=-1, dtype=torch.float64)
    inside_N = (ends_NK < (top_p_N * whole_N)[:, None]).sum(dim=-1)
    last_N = torch.where(top_p_N < 1.0, inside_N, keep - 1).clamp(max=keep - 1)
    goal_N = uniform_N * ends_NK.gather(1, last_N[:, None]).squeeze(1)
    place_N = torch.minimum(_first_above(ends_NK, goal_N), last_N)
    return ids_NK.gather(1, place_N[:, None]).squeeze(1)


def _most_inside(probs_NV: Tensor, top_p_N: Tensor) -> int:
    """A bound on how many tokens hold top_p of any row: all tokens less likely than this hold less
    than the rest of it together."""
    vocab_size = probs_NV.shape[1]
    least_N = ((1.0 - top_p_N) / vocab_size).to(probs_NV.dtype)
    return max(1, int((probs_NV >= least_N[:, None]).sum(dim=-1).max()))
