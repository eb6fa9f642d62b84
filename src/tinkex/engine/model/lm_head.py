"""The unembedding: from hidden states to logprobs and back, a few rows at a time.

A full-vocabulary log-softmax is the great waste of language-model training. Here the logits of a
chunk of rows are made, read, turned into the gradient in the same memory, and gone; never more
than one chunk exists. Rows whose targets have no share in the loss are scored and cost no backward.

Shapes: T rows · N rows of a chunk · V vocabulary · D hidden · P targets (a row may have several).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tinkex.engine.lora.adapter import HEAD_SITE, LoraBatch
from tinkex.engine.lora.linear import lora_linear, lora_linear_backward
from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["CHUNK_BYTES", "Head", "Targets", "chunk_rows", "score", "score_with_gradient"]

CHUNK_BYTES = 48 * 2**20
"""Memory for one chunk of logits: rows enough for a full-speed product."""

_LEAST_PROBABILITY = 1e-30
"""Below this a probability has lost digits, or all of them, to underflow."""

_FEWEST_ROWS = 32
"""Minimum rows of a chunk, however large the vocabulary: a product of fewer rows is slow."""

SlopeOf = Callable[[Tensor, Tensor], Tensor]
"""(places of some targets, their logprobs) -> derivative of the loss by each logprob."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The tokens to score: target p is token `token_P[p]` at row `row_P[p]`; rows
    are in rising order."""

    row_P: Tensor
    token_P: Tensor


@dataclass(frozen=True, slots=True)
class Head:
    """The unembedding matrix and the LoRA on it, for one batch."""

    linear: FrozenLinear
    lora: LoraBatch

    @property
    def vocab_size(self) -> int:
        """The number of logits per row."""
        return self.linear.out_features

    def rows(self, start: int, end: int) -> Head:
        """Returns the head for these consecutive rows of the batch."""
        return Head(self.linear, self.lora.rows(start, end))

    def select(self, indices: Tensor) -> Head:
        """Returns the head for these rows, given in rising order."""
        return Head(self.linear, self.lora.select(indices))

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Returns logits in float32, whatever the model's type."""
        return lora_linear(hidden_ND, self.linear, self.lora.at(HEAD_SITE))[0].float()


def chunk_rows(num_rows: int, vocab_size: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of about equal size that cover the rows, each small enough for one
    chunk of logits."""
    most = max(_FEWEST_ROWS, CHUNK_BYTES // (4 * vocab_size))
    num_chunks = -(-num_rows // most)
    for n in range(num_chunks):
        yield n * num_rows // num_chunks, (n + 1) * num_rows // num_chunks


def score(head: Head, hidden_TD: Tensor, targets: Targets) -> Tensor:
    """Returns the logprob of every target."""
    lp_P = torch.empty(targets.row_P.shape, device=hidden_TD.device)
    for chunk in _chunks(head, hidden_TD, targets, _distinct(targets.row_P)):
        lp_P[chunk.place_P] = chunk.score()
    return lp_P


def score_with_gradient(
    head: Head, hidden_TD: Tensor, targets: Targets, is_live_P: Tensor, slope_of: SlopeOf
) -> tuple[Tensor, Tensor]:
    """Returns the logprob of every target, and the loss's gradient by the hidden states.

    Only live targets may have a slope; that of the others is never computed.
    """
    lp_P = torch.empty(targets.row_P.shape, device=hidden_TD.device)
    dhidden_TD = torch.zeros_like(hidden_TD)
    live_rows = _distinct(targets.row_P[is_live_P])
    for chunk in _chunks(head, hidden_TD, targets, live_rows):
        lp_P[chunk.place_P] = chunk.score()
        slope_P = slope_of(chunk.place_P, lp_P[chunk.place_P])
        dhidden_TD[chunk.row_N] = chunk.gradient(slope_P)
    is_quiet_P = torch.isin(targets.row_P, live_rows, invert=True)
    for chunk in _chunks(head, hidden_TD, targets, _distinct(targets.row_P[is_quiet_P])):
        lp_P[chunk.place_P] = chunk.score()
    return lp_P, dhidden_TD


def _chunks(head: Head, hidden_TD: Tensor, targets: Targets, rows: Tensor) -> Iterator[_Chunk]:
    """Yields the rows, which are rising, in chunks, each with the targets on its rows."""
    places = torch.isin(targets.row_P, rows).nonzero().squeeze(1)
    row_P = torch.searchsorted(rows, targets.row_P[places])
    for start, end in chunk_rows(rows.numel(), head.vocab_size):
        edges = torch.searchsorted(row_P, torch.tensor([start, end], device=rows.device))
        some = slice(int(edges[0]), int(edges[1]))
        row_N, place_P = rows[start:end], places[some]
        cells = (row_P[some] - start, targets.token_P[place_P])
        yield _Chunk(head.select(row_N), row_N, hidden_TD[row_N], place_P, cells)


def _distinct(rising: Tensor) -> Tensor:
    found: Tensor = torch.unique_consecutive(rising)
    return found


class _Chunk:
    """Some rows, their targets, and their logits, which are turned into a gradient in place."""

    def __init__(
        self,
        head: Head,
        row_N: Tensor,
        hidden_ND: Tensor,
        place_P: Tensor,
        cells: tuple[Tensor, Tensor],
    ) -> None:
        self.row_N, self.place_P = row_N, place_P  # which rows and targets of the batch these are
        self._linear, self._segments = head.linear, head.lora.at(HEAD_SITE)
        self._hidden_ND, self._cells = hidden_ND, cells

    def score(self) -> Tensor:
        """Returns each target's logprob. Turns the logits into probabilities for the gradient."""
        logits_NV, self._downs = lora_linear(self._hidden_ND, self._linear, self._segments)
        logits_NV = logits_NV.float()
        wanted_P = logits_NV[self._cells]
        self._p_NV = torch.softmax(logits_NV, -1, out=logits_NV)
        p_P = self._p_NV[self._cells]
        is_lost_P = p_P < _LEAST_PROBABILITY
        lp_P = p_P.log_()
        return self._score_again(lp_P, wanted_P, is_lost_P) if bool(is_lost_P.any()) else lp_P

    def _score_again(self, lp_P: Tensor, wanted_P: Tensor, is_lost_P: Tensor) -> Tensor:
        """Recomputes logprobs of tokens whose probability is too small to take the logarithm of."""
        logits_NV, _ = lora_linear(self._hidden_ND, self._linear, self._segments)
        lse_N = torch.logsumexp(logits_NV.float(), -1)
        return torch.where(is_lost_P, wanted_P - lse_N[self._cells[0]], lp_P)

    def gradient(self, slope_P: Tensor) -> Tensor:
        """Returns the gradient of `sum(slope * logprob)` by the hidden states; adds LoRA's too."""
        slope_N = torch.zeros(self.row_N.shape, device=slope_P.device)
        slope_N.index_add_(0, self._cells[0], slope_P)
        dlogits_NV = self._p_NV
        if bool((slope_N != -1.0).any()):  # an addition would be a needless pass over the memory
            dlogits_NV.mul_(-slope_N[:, None])
        dlogits_NV.index_put_(self._cells, slope_P, accumulate=True)
        return lora_linear_backward(
            [dlogits_NV.to(self._hidden_ND.dtype)],
            self._hidden_ND,
            self._linear,
            self._segments,
            self._downs,
        )
