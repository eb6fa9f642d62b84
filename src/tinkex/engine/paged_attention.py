"""Attention over the block cache: for every row of a step, whatever it is there for.

A step has rows that continue a sequence by one token and rows of prompts. The former read keys and
values where they lie, however scattered: a score is a sum of key features weighted by the query, an
output a sum of values weighted by the scores, and torch has one operation that sums rows of a table
by index and weight without copying them, `embedding_bag`. It is two to four times faster here than
gathering or a batched product, and lengths may differ without padding memory. Prompt rows attend to
each other as in training, and to blocks computed earlier.

Shapes: T rows · B sequences · H heads · K key/value heads · G heads per key/value head ·
C features of a head · N blocks of a sequence · W tokens of a block · M = N * W · P places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.attention import PackedAttention
from tinkex.engine.kv_cache import BLOCK_TOKENS, ZERO_BLOCK, KvCache, Places

__all__ = ["StepAttention", "Stretch", "Tail"]

_MOST_GROUPS = 4
_MAY_WASTE = 1.25


@dataclass(frozen=True, slots=True)
class Tail:
    """A sequence whose newest token is a row: its blocks and its length with that token."""

    blocks: Sequence[int]
    length: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive rows of one prompt, and the blocks of what was computed before them."""

    num_rows: int
    past: int = 0
    blocks: Sequence[int] = ()


class StepAttention:
    """Rows in this order: one for each tail, then the rows of each prompt part.

    The first rows are stored at `places`, all others are not kept.
    """

    def __init__(
        self,
        cache: KvCache,
        tails: Sequence[Tail],
        parts: Sequence[Stretch],
        places: Places | None,
        num_stored: int,
    ) -> None:
        self._cache = cache
        self._places, self._num_stored = places, num_stored
        self._num_tails = len(tails)
        self._tails = _TailGroups(cache, tails) if tails else None
        self._parts = _PromptRows(cache, parts) if parts else None

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        """What each row sees."""
        if self._places is not None:
            stored = self._num_stored
            self._cache.store(layer, self._places, k_TKC[:stored], v_TKC[:stored])
        n = self._num_tails
        if self._parts is None:
            assert self._tails is not None, "a step has rows"
            return self._tails.attend(layer, q_THC, window)
        seen_TX = self._parts.attend(layer, q_THC[n:], k_TKC[n:], v_TKC[n:], window)
        if self._tails is None:
            return seen_TX
        return torch.cat([self._tails.attend(layer, q_THC[:n], window), seen_TX])


class _TailGroups:
    """Tails in groups of about equal length, so that little is computed for nothing."""

    def __init__(self, cache: KvCache, tails: Sequence[Tail]) -> None:
        sizes = np.array([len(tail.blocks) for tail in tails])
        self._order: Tensor | None = None
        self._back: Tensor | None = None
        ordered = list(tails)
        edges = [0, len(tails)]
        if sizes.max() * len(tails) > _MAY_WASTE * sizes.sum() + 16:
            order = np.argsort(-sizes, kind="stable")
            ordered = [tails[i] for i in order]
            edges = _cut(sizes[order])
            self._order = torch.from_numpy(order).to(cache.device)
            self._back = torch.from_numpy(np.argsort(order)).to(cache.device)
        kind = _SummedTails if cache.can_sum_rows else _GatheredTails
        self._groups = [
            (start, end, kind(cache, ordered[start:end])) for start, end in pairwise(edges)
        ]

    def attend(self, layer: int, q_BHC: Tensor, window: int) -> Tensor:
        if self._order is None:
            return self._groups[0][2].attend(layer, q_BHC, window)
        q_BHC = q_BHC.index_select(0, self._order)
        seen = [part.attend(layer, q_BHC[a:b], window) for a, b, part in self._groups]
        assert self._back is not None, "made with the order"
        return torch.cat(seen).index_select(0, self._back)


def _cut(sizes: np.ndarray) -> list[int]:
    """Where to cut sizes, which fall, into a few groups of about equal ones."""
    edges = [0]
    for i, size in enumerate(sizes):
        if sizes[edges[-1]] > 1.5 * size + 1 and len(edges) < _MOST_GROUPS:
            edges.append(i)
    return [*edges, len(sizes)]


class _Tails:
    """A group of tails: their blocks as one table, and which places each one sees."""

    def __init__(self, cache: KvCache, tails: Sequence[Tail]) -> None:
        self._cache = cache
        most = max(len(tail.blocks) for tail in tails)
        table = np.full((len(tails), most), ZERO_BLOCK, np.int32)
        for row, tail in enumerate(tails):
            table[row, : len(tail.blocks)] = tail.blocks
        self._table_BN = torch.from_numpy(table).to(cache.device)
        self._length_B = torch.tensor([tail.length for tail in tails], device=cache.device)
        self._hidden: dict[int, Tensor] = {}

    def hidden(self, window: int) -> Tensor:
        """The places a tail does not see, [B, 1, M]."""
        if window not in self._hidden:
            place_M = torch.arange(
                self._table_BN.shape[1] * BLOCK_TOKENS, device=self._cache.device
            )
            is_hidden = place_M >= self._length_B[:, None]
            if window:
                is_hidden |= place_M < self._length_B[:, None] - window
            self._hidden[window] = is_hidden[:, None]
        return self._hidden[window]


class _SummedTails(_Tails):
    """Sums rows of the cache where they lie."""

    def __init__(self, cache: KvCache, tails: Sequence[Tail]) -> None:
        super().__init__(cache, tails)
        batch, num_blocks = self._table_BN.shape
        heads, width = cache.num_heads, cache.head_dim
        head_BKN = self._table_BN[:, None] * heads + torch.arange(heads, dtype=torch.int32)[:, None]
        self._base_BK1N1 = head_BKN[:, :, None, :, None]
        self._shape = (batch, heads, num_blocks)
        self._scale = 1.0 / math.sqrt(width)
        self._rows: tuple[Tensor, Tensor, Tensor, Tensor] | None = None

    def attend(self, layer: int, q_BHC: Tensor, window: int) -> Tensor:
        """What each tail sees, [B, H * C]."""
        batch, heads, num_blocks = self._shape
        num_queries, width = q_BHC.shape[1:]
        group = num_queries // heads
        if self._rows is None:
            self._rows = self._find_rows(group, width)
        key_row, key_bag, value_row, value_bag = self._rows
        q_BHNC = (q_BHC * self._scale).unsqueeze(2).expand(-1, -1, num_blocks, -1)
        score = torch.embedding_bag(
            self._cache.key_rows[layer], key_row, key_bag, False, 0, False,
            q_BHNC.reshape(-1), True,
        )[0].view(batch, num_queries, -1)  # fmt: skip
        score.masked_fill_(self.hidden(window), -math.inf)
        weight = torch.softmax(score, dim=-1)
        seen = torch.embedding_bag(
            self._cache.value_rows[layer], value_row, value_bag, False, 0, False,
            weight.view(-1), True,
        )[0]  # fmt: skip
        return seen.view(batch, -1)

    def _find_rows(self, group: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Which rows of the keys' and values' tables every sum takes, and where each sum begins."""
        batch, heads, num_blocks = self._shape
        shape = (batch, heads, group, num_blocks)
        feature = torch.arange(width, dtype=torch.int32)
        token = torch.arange(BLOCK_TOKENS, dtype=torch.int32)
        key_row = (self._base_BK1N1 * width + feature).expand(*shape, width).reshape(-1)
        value_row = (self._base_BK1N1 * BLOCK_TOKENS + token).expand(*shape, BLOCK_TOKENS)
        value_row = value_row.reshape(-1)
        per_sum = num_blocks * BLOCK_TOKENS
        key_bag = torch.arange(0, key_row.numel() + 1, width, dtype=torch.int32)
        value_bag = torch.arange(0, value_row.numel() + 1, per_sum, dtype=torch.int32)
        return key_row, key_bag, value_row, value_bag


class _GatheredTails(_Tails):
    """Copies what each tail sees side by side: for devices and types without weighted sums."""

    def attend(self, layer: int, q_BHC: Tensor, window: int) -> Tensor:
        """What each tail sees, [B, H * C]."""
        k_BKMC, v_BKMC = self._cache.gather(layer, self._table_BN)
        q_BKGC = torch.unflatten(q_BHC, 1, (k_BKMC.shape[1], -1))
        mask = ~self.hidden(window)[:, None]
        out_BKGC = F.scaled_dot_product_attention(q_BKGC, k_BKMC, v_BKMC, attn_mask=mask)
        return out_BKGC.flatten(1)


class _PromptRows:
    """The prompt parts of a step: those at their beginning as in training, others one by one."""

    def __init__(self, cache: KvCache, parts: Sequence[Stretch]) -> None:
        self._cache = cache
        self._parts = list(parts)
        self._sizes = [part.num_rows for part in parts]
        self._fresh = None
        if not any(part.past for part in parts):
            self._fresh = PackedAttention(self._sizes)
        self._tables = [torch.tensor(part.blocks, device=cache.device) for part in parts]

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        if self._fresh is not None:
            return self._fresh.attend(layer, q_THC, k_TKC, v_TKC, window)
        split = (torch.split_with_sizes(x, self._sizes) for x in (q_THC, k_TKC, v_TKC))
        seen = []
        for part, table, q, k, v in zip(self._parts, self._tables, *split, strict=True):
            if part.past:
                seen.append(self._continue(layer, part, table, (q, k, v), window))
            else:
                seen.append(PackedAttention([part.num_rows]).attend(layer, q, k, v, window))
        return torch.cat(seen)

    def _continue(
        self,
        layer: int,
        part: Stretch,
        table_N: Tensor,
        qkv: tuple[Tensor, Tensor, Tensor],
        window: int,
    ) -> Tensor:
        """Rows that see blocks computed earlier, and each other."""
        q, k, v = (x.transpose(0, 1) for x in qkv)
        past_k, past_v = self._cache.gather(layer, table_N)
        k = torch.cat([past_k[:, : part.past], k], dim=1)
        v = torch.cat([past_v[:, : part.past], v], dim=1)
        mask = _continued_mask(part.num_rows, part.past, window, q.device)
        out_HTC = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, enable_gqa=True
        )[0]
        return out_HTC.transpose(0, 1).flatten(1)


def _continued_mask(num_rows: int, past: int, window: int, device: torch.device) -> Tensor:
    place = torch.arange(past + num_rows, device=device)
    distance = place[past:, None] - place[None, :]
    is_seen = distance >= 0
    return is_seen & (distance < window) if window else is_seen
