"""Causal attention over packed sequences, forward only.

On a CPU in padded groups (`attention.cpu`), elsewhere by torch's attention, with consecutive
sequences of one length in one call. `attention.training` has the forward with a backward.

Shapes: T tokens of all sequences, packed · L the length of some · H heads · K key/value heads ·
G = H / K query heads per key/value head · C features of a head · B batch of a padded group ·
Q its rows of queries · M its keys.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.attention.cpu import (
    copy_rows,
    group_by_kv_head,
    pack_sequences,
    pad_rows,
    unpad_rows,
)

__all__ = ["Attention", "PackedAttention", "attend_by_torch"]


class Attention(Protocol):
    """The attention of one batch: made once per batch, used by every layer."""

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        """The attention output, [T, H * C]. `window` 0 means full causal attention."""
        ...


class PackedAttention:
    """Whole sequences, one after the other, each attending to itself alone."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths
        self._groups = pack_sequences(lengths)

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        """The attention output, [T, H * C]. RoPE has been applied to queries and keys."""
        if q_THC.device.type != "cpu":
            return attend_by_torch(q_THC, k_TKC, v_TKC, self._lengths, window)
        num_kv_heads, scale = k_TKC.shape[1], 1 / math.sqrt(k_TKC.shape[-1])
        q_TKGC, k_TKGC, v_TKGC = (group_by_kv_head(x, num_kv_heads) for x in (q_THC, k_TKC, v_TKC))
        attn_out_TKGC = q_TKGC.new_empty(q_TKGC.shape)
        for group in self._groups:
            q_BQC, v_BMC = pad_rows(group, q_TKGC, copy_rows), pad_rows(group, v_TKGC, copy_rows)
            k_BMC = pad_rows(group, k_TKGC, lambda out, x, _: torch.mul(x, scale, out=out))
            unpad_rows(group, group.forward(q_BQC, k_BMC, v_BMC, window), attn_out_TKGC, copy_rows)
        return attn_out_TKGC.flatten(1)


def attend_by_torch(
    q_THC: Tensor,
    k_TKC: Tensor,
    v_TKC: Tensor,
    lengths: list[int],
    window: int,
    scale: float | None = None,
) -> Tensor:
    """The attention output, [T, H * C], by torch's own attention. `scale` multiplies the scores;
    the default is 1 / sqrt(C)."""
    alike = [(length, length * len(list(same))) for length, same in groupby(lengths)]
    sizes = [size for _, size in alike]
    parts = zip(*(torch.split_with_sizes(x, sizes) for x in (q_THC, k_TKC, v_TKC)), strict=True)
    result = [
        _torch_attention(q, k, v, length, window, scale)
        for (length, _), (q, k, v) in zip(alike, parts, strict=True)
    ]
    return result[0] if len(result) == 1 else torch.cat(result)


def _torch_attention(
    q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, length: int, window: int, scale: float | None
) -> Tensor:
    q, k, v = (torch.unflatten(x, 0, (-1, length)).transpose(1, 2) for x in (q_THC, k_TKC, v_TKC))
    mask = None
    if 0 < window < length:
        position = torch.arange(length, device=q.device)
        distance = position[:, None] - position
        mask = (distance >= 0) & (distance < window)
    out_NHLC = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return out_NHLC.transpose(1, 2).reshape(q_THC.shape[0], -1)
