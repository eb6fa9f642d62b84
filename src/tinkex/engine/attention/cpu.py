"""Attention on a CPU: sequences in padded groups, and the batched products of their blocks.

Batched products are the fastest way to attend on a CPU, above all backward, but they need matrices
of one shape. So sequences are padded to the longest of their group and sorted by length, longest
first, heads before tokens. Padding costs memory but little work: a block of queries is computed
only for the sequences that reach it, which are the first ones. Within the last block of a sequence
the padding is zero. The results of a sequence do not depend on the others of its group.

Shapes: T tokens of all sequences, packed · N sequences of a group · W their padded length ·
K key/value heads · G query heads per key/value head · C features of a head · B batch, N * K ·
Q rows of a block of queries, its tokens times G · M keys a block attends to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "PaddedGroup",
    "copy_rows",
    "group_by_kv_head",
    "pack_sequences",
    "pad_rows",
    "unpad_rows",
]

_MIN_BLOCK_TOKENS, _MAX_BLOCK_TOKENS = 4, 64
"""Size of a block. Short sequences have smaller blocks, or they would be mostly padding."""

_MAX_PADDING_RATIO = 2
"""Maximum size of a group in memory, relative to the blocks of its sequences."""


class _Run(NamedTuple):
    """Consecutive sequences of one length: their rows in the batch, their indices in the group."""

    rows: slice
    sequences: slice
    length: int


class _Block(NamedTuple):
    """Some queries of every head, and the keys they may attend to."""

    batch: slice
    rows: slice
    keys: slice
    masked: slice  # the keys, counted within `keys`, that are masked for some of the queries
    mask_QM: Tensor  # for those: 0 where a query may attend to a key, else minus infinity


def pack_sequences(lengths: Sequence[int]) -> list[PaddedGroup]:
    """The sequences of a batch in groups of similar length, so that there is little padding."""
    starts = list(accumulate(lengths, initial=0))
    groups: list[list[_Run]] = []
    tokens = width = filled = count = 0
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = _padded_length(lengths[i])
        is_full = width * (count + 1) > _MAX_PADDING_RATIO * (filled + length)
        if not groups or is_full or tokens != _block_tokens(lengths[i]):
            groups.append([])
            tokens, width, filled, count = _block_tokens(lengths[i]), length, 0, 0
        _append(groups[-1], slice(starts[i], starts[i] + lengths[i]), count)
        filled, count = filled + length, count + 1
    return [PaddedGroup(runs) for runs in groups]


def _append(runs: list[_Run], rows: slice, index: int) -> None:
    """Adds a sequence; one that directly follows another of its length joins that run."""
    length = rows.stop - rows.start
    if runs and runs[-1].length == length and runs[-1].rows.stop == rows.start:
        before = runs.pop()
        rows, sequences = (
            slice(before.rows.start, rows.stop),
            slice(before.sequences.start, index + 1),
        )
        runs.append(_Run(rows, sequences, length))
    else:
        runs.append(_Run(rows, slice(index, index + 1), length))


class PaddedGroup:
    """Some sequences of a batch, padded to the longest of them."""

    def __init__(self, runs: list[_Run]) -> None:
        self.runs = runs
        self._num_sequences: int = runs[-1].sequences.stop
        self._width = _padded_length(runs[0].length)
        self._block_tokens = _block_tokens(runs[0].length)
        self._starts = range(0, self._width, self._block_tokens)
        # How many sequences reach each block: the first ones, because they are sorted.
        self._num_reaching = [
            max(run.sequences.stop for run in runs if run.length > start) for start in self._starts
        ]

    def new(self, like: Tensor, num_kv_heads: int, heads_per_kv_head: int) -> Tensor:
        """Memory for the heads of every sequence, [B, W * G, C]; padding is undefined."""
        rows = self._width * heads_per_kv_head
        return like.new_empty(self._num_sequences * num_kv_heads, rows, like.shape[-1])

    def views(self, x_BQC: Tensor, num_kv_heads: int) -> Iterator[tuple[slice, Tensor]]:
        """The rows of each run, and their view of the padded tensor, [N, L, K, G, C]."""
        by_token = self._by_token(x_BQC, num_kv_heads)
        for run in self.runs:
            yield run.rows, by_token[run.sequences, : run.length]

    def zero_padding(self, x_BQC: Tensor, num_kv_heads: int) -> Tensor:
        """Zeroes the padding in the last block of every sequence."""
        by_token = self._by_token(x_BQC, num_kv_heads)
        for run in self.runs:
            if run.length % self._block_tokens:
                by_token[run.sequences, run.length : _padded_length(run.length)] = 0.0
        return x_BQC

    def forward(
        self,
        q_BQC: Tensor,
        k_BMC: Tensor,
        v_BMC: Tensor,
        window: int,
        kept_probs: list[Tensor] | None = None,
    ) -> Tensor:
        """The attention output of every query; keys come scaled. `kept_probs` collects the
        attention probabilities if it is given.

        A `window` of 0 means full causal attention.
        """
        out_BQC = torch.empty_like(q_BQC)
        for block in self._blocks(window, q_BQC, k_BMC):
            p_BQM = _probabilities(block, q_BQC, k_BMC)
            if kept_probs is not None:
                kept_probs.append(p_BQM)
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
        kept_probs: list[Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients by queries, scaled keys and values. Without `kept_probs` the probabilities
        are computed again."""
        dq_BQC, dk_BMC, dv_BMC = (
            torch.empty_like(q_BQC),
            torch.zeros_like(k_BMC),
            torch.zeros_like(v_BMC),
        )
        for i, block in enumerate(self._blocks(window, q_BQC, k_BMC)):
            batch, rows, keys = block.batch, block.rows, block.keys
            p_BQM = _probabilities(block, q_BQC, k_BMC) if kept_probs is None else kept_probs[i]
            q, dout = q_BQC[batch, rows], dout_BQC[batch, rows]
            dp_BQM = torch.bmm(dout, v_BMC[batch, keys].transpose(1, 2))
            ds_BQM = torch.ops.aten._softmax_backward_data.out(
                dp_BQM, p_BQM, -1, p_BQM.dtype, grad_input=dp_BQM
            )
            # Added in a second step: torch computes baddbmm on a part of a batch matrix by matrix.
            dv_BMC[batch, keys].add_(torch.bmm(p_BQM.transpose(1, 2), dout))
            dk_BMC[batch, keys].add_(torch.bmm(ds_BQM.transpose(1, 2), q))
            torch.bmm(ds_BQM, k_BMC[batch, keys], out=dq_BQC[batch, rows])
        return dq_BQC, dk_BMC, dv_BMC

    def num_kv_heads(self, k_BMC: Tensor) -> int:
        """The number of key/value heads in padded keys."""
        return int(k_BMC.shape[0]) // self._num_sequences

    def num_probabilities(self, num_heads: int, window: int) -> int:
        """The number of attention probabilities of all blocks together."""
        tokens, total = self._block_tokens, 0
        for start, num_reaching in zip(self._starts, self._num_reaching, strict=True):
            total += num_reaching * tokens * (start + tokens - _first_key(start, window))
        return num_heads * total

    def _by_token(self, x_BQC: Tensor, num_kv_heads: int) -> Tensor:
        shape = (self._num_sequences, num_kv_heads, self._width, -1, x_BQC.shape[-1])
        return x_BQC.view(shape).transpose(1, 2)

    def _blocks(self, window: int, q_BQC: Tensor, k_BMC: Tensor) -> Iterator[_Block]:
        num_kv_heads, heads_per_kv_head = self.num_kv_heads(k_BMC), q_BQC.shape[1] // self._width
        for start, num_reaching in zip(self._starts, self._num_reaching, strict=True):
            end = start + self._block_tokens
            first = _first_key(start, window)
            # Without a window only the keys of the block's own tokens need a mask.
            masked = start if window == 0 else first
            yield _Block(
                batch=slice(0, num_reaching * num_kv_heads),
                rows=slice(start * heads_per_kv_head, end * heads_per_kv_head),
                keys=slice(first, end),
                masked=slice(masked - first, end - first),
                mask_QM=_mask(self._block_tokens, start - masked, window, heads_per_kv_head),
            )


Write = Callable[[Tensor, Tensor, slice], object]
"""Writes the second argument into the first; the third is their rows in the batch."""


def copy_rows(out: Tensor, x: Tensor, _: slice) -> None:
    """Writes `x` as it is."""
    out.copy_(x)


def group_by_kv_head(x_THC: Tensor, num_kv_heads: int) -> Tensor:
    """Query heads grouped by the key/value head they share, [T, K, G, C]."""
    return torch.unflatten(x_THC, 1, (num_kv_heads, -1))


def pad_rows(group: PaddedGroup, x_TKGC: Tensor, write: Write) -> Tensor:
    """The group's rows of `x` as a padded tensor."""
    num_kv_heads, heads_per_kv_head = x_TKGC.shape[1:3]
    padded_BQC = group.new(x_TKGC, num_kv_heads, heads_per_kv_head)
    for rows, view in group.views(padded_BQC, num_kv_heads):
        write(view, torch.unflatten(x_TKGC[rows], 0, view.shape[:2]), rows)
    return group.zero_padding(padded_BQC, num_kv_heads)


def unpad_rows(group: PaddedGroup, padded_BQC: Tensor, out_TKGC: Tensor, write: Write) -> None:
    """Writes a padded tensor back into the rows of the batch."""
    for rows, view in group.views(padded_BQC, out_TKGC.shape[1]):
        write(torch.unflatten(out_TKGC[rows], 0, view.shape[:2]), view, rows)


def _probabilities(block: _Block, q_BQC: Tensor, k_BMC: Tensor) -> Tensor:
    """The attention probabilities of a block."""
    keys_BCM = k_BMC[block.batch, block.keys].transpose(1, 2)
    p_BQM = torch.bmm(q_BQC[block.batch, block.rows], keys_BCM)
    p_BQM[:, :, block.masked].add_(block.mask_QM)
    return torch.softmax(p_BQM, -1, out=p_BQM)


@lru_cache(maxsize=128)
def _mask(num_tokens: int, num_before: int, window: int, heads_per_kv_head: int) -> Tensor:
    """The mask of a block of queries over its own keys and `num_before` keys before them."""
    position = torch.arange(num_tokens)
    distance = position[:, None] + num_before - torch.arange(num_before + num_tokens)
    is_visible = (distance >= 0) & ((distance < window) | (window == 0))
    mask = torch.zeros(is_visible.shape).masked_fill_(~is_visible, -math.inf)
    return mask.repeat_interleave(heads_per_kv_head, 0)


def _first_key(start: int, window: int) -> int:
    """The first key that a query at this position attends to."""
    return max(0, start - window + 1) if window else 0


def _block_tokens(length: int) -> int:
    """Tokens per block of a sequence; depends on its own length alone, so its bits do too."""
    return min(_MAX_BLOCK_TOKENS, max(_MIN_BLOCK_TOKENS, 1 << (length - 1).bit_length()))


def _padded_length(length: int) -> int:
    """The length rounded up to whole blocks."""
    tokens = _block_tokens(length)
    return -(-length // tokens) * tokens
