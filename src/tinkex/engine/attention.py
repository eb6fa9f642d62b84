"""Causal attention over packed sequences, without padding.

On a CPU, blocks of queries meet the keys up to their own last one, as batched products and a
softmax, which are faster there than torch's attention, above all backward; the scores are made
again for the backward, never kept. Elsewhere torch's attention does it.

Shapes: T tokens of all sequences in a row · N sequences of one length · L that length · H heads ·
K key/value heads · G = H / K heads that share one · C features of a head · B batch, N * K ·
Q rows of a block of queries, its tokens times G · M keys a block sees.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Attention", "Gradients", "PackedAttention"]

_BLOCK_TOKENS = 64


class Gradients(NamedTuple):
    """The gradients by queries, keys and values, in their shapes."""

    q_THC: Tensor
    k_TKC: Tensor
    v_TKC: Tensor


class Attention(Protocol):
    """How the queries of a batch find their keys; told once per batch, used by every layer."""

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        """What each query sees, [T, H * C]. `window` 0 means everything before it."""
        ...


class PackedAttention:
    """Whole sequences, one after the other, each attending to itself alone.

    Neighbours of equal length go through one call.
    """

    def __init__(self, lengths: list[int]) -> None:
        self._groups = [(length, len(list(same))) for length, same in groupby(lengths)]
        self._sizes = [length * count for length, count in self._groups]

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        forward = _forward_in_blocks if q_THC.device.type == "cpu" else _forward_by_torch
        parts = [
            forward(q, k, v, length, window) for q, k, v, length in self._split(q_THC, k_TKC, v_TKC)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def backward(
        self, dout_TD: Tensor, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Gradients:
        """The gradients of what `attend` gave for the same arguments."""
        backward = _backward_in_blocks if q_THC.device.type == "cpu" else _backward_by_torch
        douts = torch.split_with_sizes(dout_TD.view_as(q_THC), self._sizes)
        parts = [
            backward(dout, q, k, v, length, window)
            for dout, (q, k, v, length) in zip(douts, self._split(q_THC, k_TKC, v_TKC), strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return Gradients(*(torch.cat(same) for same in zip(*parts, strict=True)))

    def _split(
        self, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
        lengths = [length for length, _ in self._groups]
        parts = (torch.split_with_sizes(x, self._sizes) for x in (q_THC, k_TKC, v_TKC))
        return zip(*parts, lengths, strict=True)


def _forward_in_blocks(
    q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, length: int, window: int
) -> Tensor:
    q_BQC, k_BMC, v_BMC = _by_head(q_THC, k_TKC, v_TKC, length)
    out_BQC = torch.empty_like(q_BQC)
    for block in _blocks(length, window, q_BQC.shape[1] // length):
        p_BQM = block.weights(q_BQC, k_BMC)
        torch.bmm(p_BQM, v_BMC[:, block.keys], out=out_BQC[:, block.rows])
    return _by_token(out_BQC, q_THC.shape, length).flatten(1)


def _backward_in_blocks(
    dout_THC: Tensor, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, length: int, window: int
) -> Gradients:
    q_BQC, k_BMC, v_BMC = _by_head(q_THC, k_TKC, v_TKC, length)
    dout_BQC = _heads_first(dout_THC, k_TKC.shape[1], length)
    dq_BQC, dk_BMC, dv_BMC = (torch.zeros_like(x) for x in (q_BQC, k_BMC, v_BMC))
    for block in _blocks(length, window, q_BQC.shape[1] // length):
        rows, keys = block.rows, block.keys
        p_BQM = block.weights(q_BQC, k_BMC)
        dp_BQM = torch.bmm(dout_BQC[:, rows], v_BMC[:, keys].transpose(1, 2))
        ds_BQM = torch.ops.aten._softmax_backward_data.out(
            dp_BQM, p_BQM, -1, p_BQM.dtype, grad_input=dp_BQM
        )
        dv_BMC[:, keys].baddbmm_(p_BQM.transpose(1, 2), dout_BQC[:, rows])
        dk_BMC[:, keys].baddbmm_(ds_BQM.transpose(1, 2), q_BQC[:, rows])
        torch.bmm(ds_BQM, k_BMC[:, keys], out=dq_BQC[:, rows])
    return Gradients(
        _by_token(dq_BQC, q_THC.shape, length),
        _by_token(dk_BMC.mul_(_scale(k_TKC)), k_TKC.shape, length),
        _by_token(dv_BMC, v_TKC.shape, length),
    )


class _Block(NamedTuple):
    """Some queries of every head, and the keys they may see."""

    rows: slice
    keys: slice
    masked: slice  # the keys, counted within `keys`, that some of the queries may not see
    mask_QM: Tensor  # for those: 0 where a key may be seen, else minus infinity

    def weights(self, q_BQC: Tensor, k_BMC: Tensor) -> Tensor:
        """How much each query attends to each key."""
        p_BQM = torch.bmm(q_BQC[:, self.rows], k_BMC[:, self.keys].transpose(1, 2))
        p_BQM[:, :, self.masked].add_(self.mask_QM)
        return torch.softmax(p_BQM, -1, out=p_BQM)


def _blocks(length: int, window: int, heads_per_key: int) -> Iterator[_Block]:
    for start in range(0, length, _BLOCK_TOKENS):
        end = min(start + _BLOCK_TOKENS, length)
        first = max(0, start - window + 1) if window else 0
        # Without a window only keys beside the queries themselves can be too late for them.
        masked = start if window == 0 else first
        yield _Block(
            rows=slice(start * heads_per_key, end * heads_per_key),
            keys=slice(first, end),
            masked=slice(masked - first, end - first),
            mask_QM=_mask(end - start, start - masked, window, heads_per_key),
        )


@lru_cache(maxsize=128)
def _mask(num_tokens: int, num_before: int, window: int, heads_per_key: int) -> Tensor:
    """What to add to the scores of tokens and the keys from `num_before` before the first on."""
    place = torch.arange(num_tokens)
    distance = place[:, None] + num_before - torch.arange(num_before + num_tokens)
    is_seen = (distance >= 0) & ((distance < window) | (window == 0))
    mask = torch.zeros(is_seen.shape).masked_fill_(~is_seen, -math.inf)
    return mask.repeat_interleave(heads_per_key, 0)


def _by_head(
    q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with the heads before the tokens; the keys carry the scale."""
    num_keys = k_TKC.shape[1]
    q_BQC, k_BMC, v_BMC = (_heads_first(x, num_keys, length) for x in (q_THC, k_TKC, v_TKC))
    return q_BQC, k_BMC * _scale(k_BMC), v_BMC


def _heads_first(x_THC: Tensor, num_keys: int, length: int) -> Tensor:
    """[N * K, L * G, C]: the heads of one key lie side by side, token after token."""
    x_NLKGC = torch.unflatten(torch.unflatten(x_THC, 0, (-1, length)), 2, (num_keys, -1))
    return x_NLKGC.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def _by_token(x_BQC: Tensor, shape: torch.Size, length: int) -> Tensor:
    """The way back from `_heads_first`."""
    num_keys = x_BQC.shape[0] * length // shape[0]
    x_NKLGC = torch.unflatten(torch.unflatten(x_BQC, 1, (length, -1)), 0, (-1, num_keys))
    return x_NKLGC.transpose(1, 2).reshape(shape)


def _scale(x: Tensor) -> float:
    return 1 / math.sqrt(x.shape[-1])


def _forward_by_torch(
    q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, length: int, window: int
) -> Tensor:
    q, k, v = (torch.unflatten(x, 0, (-1, length)).transpose(1, 2) for x in (q_THC, k_TKC, v_TKC))
    mask = None
    if 0 < window < length:
        mask = _mask(length, 0, window, 1).to(q)
    out_NHLC = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return out_NHLC.transpose(1, 2).reshape(q_THC.shape[0], -1)


def _backward_by_torch(
    dout_THC: Tensor, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, length: int, window: int
) -> Gradients:
    leaves = [x.detach().requires_grad_(True) for x in (q_THC, k_TKC, v_TKC)]
    with torch.enable_grad():
        out_TD = _forward_by_torch(leaves[0], leaves[1], leaves[2], length, window)
    return Gradients(*torch.autograd.grad(out_TD, leaves, dout_THC.flatten(1)))
