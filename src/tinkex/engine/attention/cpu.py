"""Sequences side by side for attention on a CPU: how they lie, and the products of their blocks.

Batched products are the fastest way to attend on a CPU, above all backward, but they want matrices
of one shape. So each sequence gets a lane, the longest first, heads before tokens; lanes are as
wide as the longest sequence in memory, but not in work: a block of queries is computed for the
lanes that reach it, which are the first ones. A sequence ends within a block, the rest of which is
zero; its numbers do not depend on what lies in other lanes.

Shapes: T tokens of all sequences in a row · N lanes · W their width · K key/value heads ·
G heads that share one · C features of a head · B batch, N * K · Q rows of a block of queries, its
tokens times G · M keys a block sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["PaddedGroup", "copy", "fill", "pack_sequences", "spread", "take"]

_FEWEST_TOKENS, _MOST_TOKENS = 4, 64
"""Of a block. Short sequences have smaller ones, or most of their lanes would be empty."""

_MOST_WASTE = 2
"""How many times the memory of their blocks lanes may take."""


class _Run(NamedTuple):
    """Neighbours of one length: their rows in the batch, and their lanes."""

    rows: slice
    lanes: slice
    length: int


class _Block(NamedTuple):
    """Some queries of every head, and the keys they may see."""

    batch: slice
    rows: slice
    keys: slice
    masked: slice  # the keys, counted within `keys`, that some of the queries may not see
    mask_QM: Tensor  # for those: 0 where a key may be seen, else minus infinity


def pack_sequences(lengths: Sequence[int]) -> list[PaddedGroup]:
    """The sequences of a batch, so that little memory is left empty."""
    starts = list(accumulate(lengths, initial=0))
    groups: list[list[_Run]] = []
    tokens = width = filled = count = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = _in_blocks(lengths[i])
        is_full = width * (count + 1) > _MOST_WASTE * (filled + length)
        if not groups or is_full or tokens != _block_tokens(lengths[i]):
            groups.append([])
            tokens, width, filled, count = _block_tokens(lengths[i]), length, 0, 0
        _append(groups[-1], slice(starts[i], starts[i] + lengths[i]), count)
        filled, count = filled + length, count + 1
    return [PaddedGroup(runs) for runs in groups]


def _append(runs: list[_Run], rows: slice, lane: int) -> None:
    """Adds a sequence; one that lies behind its equal belongs to the same run."""
    length = rows.stop - rows.start
    if runs and runs[-1].length == length and runs[-1].rows.stop == rows.start:
        before = runs.pop()
        rows, lanes = slice(before.rows.start, rows.stop), slice(before.lanes.start, lane + 1)
        runs.append(_Run(rows, lanes, length))
    else:
        runs.append(_Run(rows, slice(lane, lane + 1), length))


class PaddedGroup:
    """Some sequences of a batch side by side."""

    def __init__(self, runs: list[_Run]) -> None:
        self.runs = runs
        self._num_lanes: int = runs[-1].lanes.stop
        self._width = _in_blocks(runs[0].length)
        self._block_tokens = _block_tokens(runs[0].length)
        self._starts = range(0, self._width, self._block_tokens)
        # How many lanes reach each block: the first ones, for they are sorted.
        self._reaching = [
            max(run.lanes.stop for run in runs if run.length > start) for start in self._starts
        ]

    def new(self, like: Tensor, num_keys: int, heads_per_key: int) -> Tensor:
        """Memory for heads of every lane, [B, W * G, C]; what no sequence fills is undefined."""
        rows = self._width * heads_per_key
        return like.new_empty(self._num_lanes * num_keys, rows, like.shape[-1])

    def pieces(self, x_BQC: Tensor, num_keys: int) -> Iterator[tuple[slice, Tensor]]:
        """The rows of each run, and where they lie in the lanes, [N, L, K, G, C]."""
        by_token = self._by_token(x_BQC, num_keys)
        for run in self.runs:
            yield run.rows, by_token[run.lanes, : run.length]

    def close(self, x_BQC: Tensor, num_keys: int) -> Tensor:
        """Puts zeros behind the end of every sequence that ends within a block."""
        by_token = self._by_token(x_BQC, num_keys)
        for run in self.runs:
            if run.length % self._block_tokens:
                by_token[run.lanes, run.length : _in_blocks(run.length)] = 0.0
        return x_BQC

    def forward(
        self,
        q_BQC: Tensor,
        k_BMC: Tensor,
        v_BMC: Tensor,
        window: int,
        kept: list[Tensor] | None = None,
    ) -> Tensor:
        """What each query sees; keys come scaled. The weights are added to `kept` if it is given.

        A `window` of 0 is everything before the query.
        """
        out_BQC = torch.empty_like(q_BQC)
        for block in self._blocks(window, q_BQC, k_BMC):
            p_BQM = _weights(block, q_BQC, k_BMC)
            if kept is not None:
                kept.append(p_BQM)
            batch, rows, keys = block.batch, block.rows, block.keys
            torch.bmm(p_BQM, v_BMC[batch, keys], out=out_BQC[batch, rows])
        return out_BQC

    def backward(
        self,
        dout_BQC: Tensor,
        q_BQC: Tensor,
        k_BMC: Tensor,
        v_BMC: Tensor,
        window: int,
        kept: list[Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients by queries, scaled keys and values; weights not kept are made again."""
        dq_BQC, dk_BMC, dv_BMC = (
            torch.empty_like(q_BQC),
            torch.zeros_like(k_BMC),
            torch.zeros_like(v_BMC),
        )
        for i, block in enumerate(self._blocks(window, q_BQC, k_BMC)):
            batch, rows, keys = block.batch, block.rows, block.keys
            p_BQM = _weights(block, q_BQC, k_BMC) if kept is None else kept[i]
            q, dout = q_BQC[batch, rows], dout_BQC[batch, rows]
            dp_BQM = torch.bmm(dout, v_BMC[batch, keys].transpose(1, 2))
            ds_BQM = torch.ops.aten._softmax_backward_data.out(
                dp_BQM, p_BQM, -1, p_BQM.dtype, grad_input=dp_BQM
            )
            # Added afterwards: a product that adds to a part of a batch is made matrix by matrix.
            dv_BMC[batch, keys].add_(torch.bmm(p_BQM.transpose(1, 2), dout))
            dk_BMC[batch, keys].add_(torch.bmm(ds_BQM.transpose(1, 2), q))
            torch.bmm(ds_BQM, k_BMC[batch, keys], out=dq_BQC[batch, rows])
        return dq_BQC, dk_BMC, dv_BMC

    def num_keys(self, k_BMC: Tensor) -> int:
        """The number of key/value heads in lanes of keys."""
        return int(k_BMC.shape[0]) // self._num_lanes

    def num_weights(self, num_heads: int, window: int) -> int:
        """How many numbers the weights of all blocks are."""
        tokens, total = self._block_tokens, 0
        for start, reaching in zip(self._starts, self._reaching, strict=True):
            total += reaching * tokens * (start + tokens - _first_key(start, window))
        return num_heads * total

    def _by_token(self, x_BQC: Tensor, num_keys: int) -> Tensor:
        shape = (self._num_lanes, num_keys, self._width, -1, x_BQC.shape[-1])
        return x_BQC.view(shape).transpose(1, 2)

    def _blocks(self, window: int, q_BQC: Tensor, k_BMC: Tensor) -> Iterator[_Block]:
        num_keys, heads_per_key = self.num_keys(k_BMC), q_BQC.shape[1] // self._width
        for start, reaching in zip(self._starts, self._reaching, strict=True):
            end = start + self._block_tokens
            first = _first_key(start, window)
            # Without a window only keys beside the queries themselves can be too late for them.
            masked = start if window == 0 else first
            yield _Block(
                batch=slice(0, reaching * num_keys),
                rows=slice(start * heads_per_key, end * heads_per_key),
                keys=slice(first, end),
                masked=slice(masked - first, end - first),
                mask_QM=_mask(self._block_tokens, start - masked, window, heads_per_key),
            )


Write = Callable[[Tensor, Tensor, slice], object]
"""Writes the second into the first; the third tells which rows of the batch they are."""


def copy(out: Tensor, x: Tensor, _: slice) -> None:
    """Writes `x` as it is."""
    out.copy_(x)


def spread(x_THC: Tensor, num_keys: int) -> Tensor:
    """The heads by the key they share, [T, K, G, C]."""
    return torch.unflatten(x_THC, 1, (num_keys, -1))


def fill(lanes: PaddedGroup, x_TKGC: Tensor, write: Write) -> Tensor:
    """PaddedGroup of `x`."""
    num_keys, heads_per_key = x_TKGC.shape[1:3]
    lanes_BQC = lanes.new(x_TKGC, num_keys, heads_per_key)
    for rows, piece in lanes.pieces(lanes_BQC, num_keys):
        write(piece, torch.unflatten(x_TKGC[rows], 0, piece.shape[:2]), rows)
    return lanes.close(lanes_BQC, num_keys)


def take(lanes: PaddedGroup, lanes_BQC: Tensor, out_TKGC: Tensor, write: Write) -> None:
    """What is in the lanes, into the rows of the batch."""
    for rows, piece in lanes.pieces(lanes_BQC, out_TKGC.shape[1]):
        write(torch.unflatten(out_TKGC[rows], 0, piece.shape[:2]), piece, rows)


def _weights(block: _Block, q_BQC: Tensor, k_BMC: Tensor) -> Tensor:
    """How much each query attends to each key."""
    keys_BCM = k_BMC[block.batch, block.keys].transpose(1, 2)
    p_BQM = torch.bmm(q_BQC[block.batch, block.rows], keys_BCM)
    p_BQM[:, :, block.masked].add_(block.mask_QM)
    return torch.softmax(p_BQM, -1, out=p_BQM)


@lru_cache(maxsize=128)
def _mask(num_tokens: int, num_before: int, window: int, heads_per_key: int) -> Tensor:
    """What to add to the scores of a block and the keys from `num_before` before it on."""
    place = torch.arange(num_tokens)
    distance = place[:, None] + num_before - torch.arange(num_before + num_tokens)
    is_seen = (distance >= 0) & ((distance < window) | (window == 0))
    mask = torch.zeros(is_seen.shape).masked_fill_(~is_seen, -math.inf)
    return mask.repeat_interleave(heads_per_key, 0)


def _first_key(start: int, window: int) -> int:
    """The first key that a query at this place sees."""
    return max(0, start - window + 1) if window else 0


def _block_tokens(length: int) -> int:
    """How many tokens the blocks of a sequence have; its own length alone decides."""
    return min(_MOST_TOKENS, max(_FEWEST_TOKENS, 1 << (length - 1).bit_length()))


def _in_blocks(length: int) -> int:
    """The length of whole blocks."""
    tokens = _block_tokens(length)
    return -(-length // tokens) * tokens
