"""The unembedding: from hidden states to logprobs and back, a few rows at a time.

A full-vocabulary log-softmax is the great waste of language-model training. Here the logits of a
chunk of rows are made, read (gather minus log-sum-exp), turned into the gradient in the same
memory, and gone; never more than one chunk exists.

Shapes: T rows · N rows of a chunk · V vocabulary · D hidden · P targets (a row may have several) ·
R rank · K candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.linear import FrozenLinear
from tinkex.engine.lora import HEAD_SITE, LoraBatch

__all__ = ["CHUNK_BYTES", "Head", "Targets", "chunk_rows", "score", "score_with_gradient"]

CHUNK_BYTES = 48 * 2**20
"""Memory for one chunk of logits. Large enough for a full-speed matrix product."""

SlopeOf = Callable[[int, int, Tensor], Tensor]
"""(first target, end target, their logprobs) -> derivative of the loss by each logprob."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Which tokens to score: target p is token `token_P[p]` at row `row_P[p]`, rows rising."""

    row_P: Tensor
    token_P: Tensor

    def within(self, start: int, end: int) -> tuple[int, int]:
        """The range of targets whose rows are in start..end."""
        edges = torch.searchsorted(self.row_P, torch.tensor([start, end], device=self.row_P.device))
        return int(edges[0]), int(edges[1])


@dataclass(frozen=True, slots=True)
class Head:
    """The unembedding matrix and the LoRA on it, for one batch."""

    linear: FrozenLinear
    lora: LoraBatch

    @property
    def vocab_size(self) -> int:
        """How many logits a row has."""
        return self.linear.out_features

    def rows(self, start: int, end: int) -> Head:
        """The head as these rows of the batch see it."""
        return Head(self.linear, self.lora.rows(start, end))

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits in float32, whatever the model's type."""
        logits_NV = self.linear.forward(hidden_ND)
        for segment in self.lora.at(HEAD_SITE):
            rows, pair = slice(segment.start, segment.end), segment.pair
            down_NR = hidden_ND[rows] @ pair.a_RD.to(hidden_ND.dtype).T
            b_VR = pair.bs_OR[0].to(hidden_ND.dtype)
            logits_NV[rows].addmm_(down_NR, b_VR.T, alpha=pair.scale)
        return logits_NV.float()

    def backward(self, hidden_ND: Tensor, dlogits_NV: Tensor) -> Tensor:
        """The gradient by the hidden states; the LoRA's is added to the `.grad` of its weights."""
        dlogits_NV = dlogits_NV.to(hidden_ND.dtype)
        dhidden_ND = self.linear.backward(dlogits_NV)
        for segment in self.lora.at(HEAD_SITE):
            rows, pair = slice(segment.start, segment.end), segment.pair
            a_RD, b_VR = pair.a_RD.to(hidden_ND.dtype), pair.bs_OR[0].to(hidden_ND.dtype)
            down_NR = hidden_ND[rows] @ a_RD.T
            ddown_NR = (dlogits_NV[rows] @ b_VR).mul_(pair.scale)
            dhidden_ND[rows].addmm_(ddown_NR, a_RD)
            _accumulate(pair.a_RD, ddown_NR.T, hidden_ND[rows], 1.0)
            _accumulate(pair.bs_OR[0], dlogits_NV[rows].T, down_NR, pair.scale)
        return dhidden_ND


def chunk_rows(num_rows: int, vocab_size: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover the rows, each small enough for one chunk of logits."""
    step = max(1, CHUNK_BYTES // (4 * vocab_size))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def score(head: Head, hidden_TD: Tensor, targets: Targets) -> Tensor:
    """The logprob of every target."""
    parts = []
    for start, end in chunk_rows(hidden_TD.shape[0], head.vocab_size):
        first, last = targets.within(start, end)
        if first == last:
            continue
        logits_NV = head.rows(start, end).logits(hidden_TD[start:end])
        row_P = targets.row_P[first:last] - start
        parts.append(_logprobs(logits_NV, row_P, targets.token_P[first:last])[0])
    return torch.cat(parts)


def score_with_gradient(
    head: Head, hidden_TD: Tensor, targets: Targets, slope_of: SlopeOf
) -> tuple[Tensor, Tensor]:
    """The logprob of every target, and the loss's gradient by the hidden states.

    Rows where no target has a slope are scored but cost no backward.
    """
    dhidden_TD = torch.zeros_like(hidden_TD)
    parts = []
    for start, end in chunk_rows(hidden_TD.shape[0], head.vocab_size):
        first, last = targets.within(start, end)
        if first == last:
            continue
        row_P, token_P = targets.row_P[first:last] - start, targets.token_P[first:last]
        chunk_head, chunk_ND = head.rows(start, end), hidden_TD[start:end]
        logits_NV = chunk_head.logits(chunk_ND)
        lp_P, lse_N = _logprobs(logits_NV, row_P, token_P)
        parts.append(lp_P)
        chunk = _Chunk(chunk_head, chunk_ND, logits_NV, lse_N)
        chunk.add_gradient(dhidden_TD[start:end], row_P, token_P, slope_of(first, last, lp_P))
    return torch.cat(parts), dhidden_TD


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of logits about to become their own gradient."""

    head: Head
    hidden_ND: Tensor
    logits_NV: Tensor
    lse_N: Tensor

    def add_gradient(
        self, dhidden_ND: Tensor, row_P: Tensor, token_P: Tensor, slope_P: Tensor
    ) -> None:
        """Adds the gradient of `sum(slope * logprob)` to dhidden; uses up the logits."""
        slope_N = torch.zeros_like(self.lse_N).index_add_(0, row_P, slope_P)
        is_live_N = torch.zeros_like(self.lse_N, dtype=torch.bool)
        is_live_N[row_P[slope_P != 0]] = True
        live = is_live_N.nonzero().squeeze(1)
        if live.numel() == 0:
            return
        if live.numel() == is_live_N.numel():
            self._to_gradient(self.logits_NV, self.lse_N, slope_N, (row_P, token_P, slope_P))
            dhidden_ND.copy_(self.head.backward(self.hidden_ND, self.logits_NV))
            return
        place_N = is_live_N.cumsum(0) - 1
        kept = is_live_N[row_P]
        cells = (place_N[row_P[kept]], token_P[kept], slope_P[kept])
        some_NV = self.logits_NV[live]
        self._to_gradient(some_NV, self.lse_N[live], slope_N[live], cells)
        some_head = Head(self.head.linear, self.head.lora.select(live))
        dhidden_ND[live] = some_head.backward(self.hidden_ND[live], some_NV)

    @staticmethod
    def _to_gradient(
        logits_NV: Tensor, lse_N: Tensor, slope_N: Tensor, cells: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Turns logits into `slope * (onehot - softmax)`, in place."""
        row_P, token_P, slope_P = cells
        logits_NV.sub_(lse_N[:, None]).exp_().mul_(-slope_N[:, None])
        logits_NV.index_put_((row_P, token_P), slope_P, accumulate=True)


def _logprobs(logits_NV: Tensor, row_P: Tensor, token_P: Tensor) -> tuple[Tensor, Tensor]:
    lse_N = torch.logsumexp(logits_NV, dim=-1)
    return logits_NV[row_P, token_P] - lse_N[row_P], lse_N


def _accumulate(weight: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    """Adds `scale * left @ right` to the weight's gradient, if it is being trained."""
    if weight.grad is not None:
        weight.grad.addmm_(left.to(weight.dtype), right.to(weight.dtype), alpha=scale)
