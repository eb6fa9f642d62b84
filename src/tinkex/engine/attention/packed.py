"""Causal attention over packed sequences, without padding: what each token sees.

On a CPU in lanes (`lanes`), elsewhere by torch's attention, sequences of one length in one call.
What training adds is in `training_attention`.

Shapes: T tokens of all sequences in a row · L the length of some · H heads · K key/value heads ·
G = H / K heads that share one · C features of a head · B batch of lanes · Q rows of lanes · M keys.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.attention.cpu import copy, fill, pack_sequences, spread, take

__all__ = ["Attention", "PackedAttention", "attend_by_torch"]


class Attention(Protocol):
    """How the queries of a batch find their keys; told once per batch, used by every layer."""

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        """What each query sees, [T, H * C]. `window` 0 means everything before it."""
        ...


class PackedAttention:
    """Whole sequences, one after the other, each attending to itself alone."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths
        self._lanes = pack_sequences(lengths)

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        """What each query sees, [T, H * C]; queries and keys are turned by their positions."""
        if q_THC.device.type != "cpu":
            return attend_by_torch(q_THC, k_TKC, v_TKC, self._lengths, window)
        num_keys, scale = k_TKC.shape[1], 1 / math.sqrt(k_TKC.shape[-1])
        q_TKGC, k_TKGC, v_TKGC = (spread(x, num_keys) for x in (q_THC, k_TKC, v_TKC))
        seen_TKGC = q_TKGC.new_empty(q_TKGC.shape)
        for lanes in self._lanes:
            q_BQC, v_BMC = fill(lanes, q_TKGC, copy), fill(lanes, v_TKGC, copy)
            k_BMC = fill(lanes, k_TKGC, lambda out, x, _: torch.mul(x, scale, out=out))
            take(lanes, lanes.forward(q_BQC, k_BMC, v_BMC, window), seen_TKGC, copy)
        return seen_TKGC.flatten(1)


def attend_by_torch(
    q_THC: Tensor,
    k_TKC: Tensor,
    v_TKC: Tensor,
    lengths: list[int],
    window: int,
    scale: float | None = None,
) -> Tensor:
    """What each query sees, [T, H * C], by torch's own attention. `scale` is that of the scores,
    1 / sqrt(C) if none is given."""
    alike = [(length, length * len(list(same))) for length, same in groupby(lengths)]
    sizes = [size for _, size in alike]
    parts = zip(*(torch.split_with_sizes(x, sizes) for x in (q_THC, k_TKC, v_TKC)), strict=True)
    found = [
        _by_torch(q, k, v, length, window, scale)
        for (length, _), (q, k, v) in zip(alike, parts, strict=True)
    ]
    return found[0] if len(found) == 1 else torch.cat(found)


def _by_torch(
    q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, length: int, window: int, scale: float | None
) -> Tensor:
    q, k, v = (torch.unflatten(x, 0, (-1, length)).transpose(1, 2) for x in (q_THC, k_TKC, v_TKC))
    mask = None
    if 0 < window < length:
        place = torch.arange(length, device=q.device)
        distance = place[:, None] - place
        mask = (distance >= 0) & (distance < window)
    out_NHLC = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return out_NHLC.transpose(1, 2).reshape(q_THC.shape[0], -1)
