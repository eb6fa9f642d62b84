"""Causal attention over packed sequences, without padding.

Shapes: T tokens of all sequences in a row · N sequences of one length · L that length · H heads ·
K key/value heads · C features of a head.
"""

from __future__ import annotations

from itertools import groupby
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Attention", "PackedAttention"]


class Attention(Protocol):
    """How the queries of a batch find their keys; told once per batch, used by every layer."""

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        """What each query sees, [T, H * C]. `window` 0 means everything before it."""
        ...


class PackedAttention:
    """Whole sequences, one after the other, each attending to itself alone.

    Neighbours of equal length go through one call. With `keeps_kv` the keys and values of every
    layer stay in `kept`, for a cache to take over.
    """

    def __init__(self, lengths: list[int], *, keeps_kv: bool = False) -> None:
        self._groups = [(length, len(list(same))) for length, same in groupby(lengths)]
        self._sizes = [length * count for length, count in self._groups]
        self._keeps_kv = keeps_kv
        self.kept: list[tuple[Tensor, Tensor]] = []

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        if self._keeps_kv:
            assert layer == len(self.kept), "layers must come in order"
            self.kept.append((k_TKC, v_TKC))
        if len(self._groups) == 1:
            return self._attend_group(q_THC, k_TKC, v_TKC, self._groups[0], window)
        # split and cat, not slices: the backward of n slices would fill n full-size gradients.
        parts = zip(
            torch.split_with_sizes(q_THC, self._sizes),
            torch.split_with_sizes(k_TKC, self._sizes),
            torch.split_with_sizes(v_TKC, self._sizes),
            self._groups,
            strict=True,
        )
        return torch.cat([self._attend_group(q, k, v, group, window) for q, k, v, group in parts])

    @staticmethod
    def _attend_group(
        q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, group: tuple[int, int], window: int
    ) -> Tensor:
        length, count = group
        q, k, v = (
            torch.unflatten(x, 0, (count, length)).transpose(1, 2) for x in (q_THC, k_TKC, v_TKC)
        )
        mask = _window_mask(length, window, q.device) if 0 < window < length else None
        out_NHLC = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return out_NHLC.transpose(1, 2).reshape(count * length, -1)


def _window_mask(length: int, window: int, device: torch.device) -> Tensor:
    place = torch.arange(length, device=device)
    distance = place[:, None] - place[None, :]
    return (distance >= 0) & (distance < window)
