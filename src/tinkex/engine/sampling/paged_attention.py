"""Attention over the KV cache, for the decode rows and the prompt rows of a step.

A step has rows that continue a sequence by one token and rows of prompts. The former read keys and
values where they lie, however scattered: a score is a sum of key features weighted by the query, an
output a sum of values weighted by the scores, and torch has one operation that sums rows of a table
by index and weight without copying them, `embedding_bag`. It is two to four times faster here than
gathering or a batched product, and lengths may differ without padding memory. Prompt rows attend to
each other as in training, and to blocks computed earlier.

Shapes: T rows · B sequences · H heads · K key/value heads · G heads per key/value head ·
C features of a head · N blocks of a sequence · W tokens of a block · M = N * W · S blocks of every
head of every sequence · X = B * H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.attention.packed import Attention, PackedAttention
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, ZERO_BLOCK, KvCache, Places

__all__ = ["DecodeRow", "PrefillSpan", "StepAttention"]

_MOST_GROUPS = 4
_MAY_FILL = 1.15  # relative to the rows: up to here summing zeros is cheaper than moving scores


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """A sequence whose newest token is a row: its blocks and its length with that token."""

    blocks: Sequence[int]
    length: int


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Consecutive rows of one prompt, and the blocks of what was computed before them."""

    num_rows: int
    past: int = 0
    blocks: Sequence[int] = ()


class StepAttention:
    """The rows of a step: one per decode row (None: an empty row), then those of each prompt part.

    The first rows are stored at `places`, all others are not kept.
    """

    def __init__(
        self,
        cache: KvCache,
        tails: Sequence[DecodeRow | None],
        stretches: Sequence[PrefillSpan],
        places: Places | None,
    ) -> None:
        self._cache, self._places = cache, places
        self._num_stored = 0 if places is None else len(places[0])
        self._num_tails = len(tails)
        self._tails = _TailGroups(cache, tails) if tails else None
        self._prompts = _PromptRows(cache, stretches) if stretches else None

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        """Returns the attention output of each row."""
        if self._places is not None:
            stored = self._num_stored
            self._cache.store(layer, self._places, k_TKC[:stored], v_TKC[:stored])
        n = self._num_tails
        if self._prompts is None:
            assert self._tails is not None, "a step has rows"
            return self._tails.attend(layer, q_THC, window)
        attn_out_TX = self._prompts.attend(layer, q_THC[n:], k_TKC[n:], v_TKC[n:], window)
        if self._tails is None:
            return attn_out_TX
        return torch.cat([self._tails.attend(layer, q_THC[:n], window), attn_out_TX])


class _TailGroups:
    """Decode rows in groups of about equal length, so that little padding is computed."""

    def __init__(self, cache: KvCache, tails: Sequence[DecodeRow | None]) -> None:
        rows = [row for row, tail in enumerate(tails) if tail is not None]
        sizes = np.array([len(tail.blocks) for tail in tails if tail is not None])
        edges = [0, len(rows)]
        kind = _SummedTails if cache.can_sum_rows else _GatheredTails
        if rows and sizes.max() * len(rows) > kind.may_waste * sizes.sum() + 16:
            order = np.argsort(-sizes, kind="stable")
            rows = [rows[i] for i in order]
            edges = _cut(sizes[order], kind.may_waste)
        found = [tail for row in rows if (tail := tails[row]) is not None]
        self._groups = [kind(cache, found[a:b]) for a, b in pairwise(edges) if a < b]
        self._edges = edges
        self._is_whole = rows == list(range(len(tails)))
        self._row_B = torch.tensor(rows, dtype=torch.int64, device=cache.device)
        # Empty rows stay zero. What one layer left here is used up before the next one writes.
        width = cache.num_query_heads * cache.head_dim
        self._attn_out_TX = cache.key_rows[0].new_zeros(len(tails), width)

    def attend(self, layer: int, q_THC: Tensor, window: int) -> Tensor:
        if self._is_whole and len(self._groups) == 1:
            return self._groups[0].attend(layer, q_THC, window)
        if self._groups:
            q_BHC = q_THC.index_select(0, self._row_B)
            seen = [
                group.attend(layer, q_BHC[a:b], window)
                for group, (a, b) in zip(self._groups, pairwise(self._edges), strict=True)
            ]
            self._attn_out_TX.index_copy_(
                0, self._row_B, seen[0] if len(seen) == 1 else torch.cat(seen)
            )
        return self._attn_out_TX


def _cut(sizes: np.ndarray, may_waste: float) -> list[int]:
    """Returns where to cut sizes in falling order into a few groups of about equal ones."""
    edges = [0]
    for i, size in enumerate(sizes):
        if sizes[edges[-1]] > 1.2 * may_waste * size + 1 and len(edges) < _MOST_GROUPS:
            edges.append(i)
    return [*edges, len(sizes)]


class _Tails:
    """A group of decode rows: their blocks as one table, and the positions each row sees."""

    may_waste: ClassVar[float]
    """Maximum padded work of a group, relative to the work that is needed."""

    def __init__(self, cache: KvCache, tails: Sequence[DecodeRow]) -> None:
        self._cache = cache
        most = max(len(tail.blocks) for tail in tails)
        table = np.full((len(tails), most), ZERO_BLOCK, np.int32)
        for row, tail in enumerate(tails):
            table[row, : len(tail.blocks)] = tail.blocks
        self._table_BN = torch.from_numpy(table).to(cache.device)
        self._length_B = torch.tensor([tail.length for tail in tails], device=cache.device)
        self._hidden: dict[int, Tensor] = {}

    def hidden(self, window: int) -> Tensor:
        """Returns the positions a decode row does not see, [B, 1, M]."""
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
    """Sums rows of the cache where they lie, those of every tail's own blocks and no others.

    Scores come by tail and head, block after block, S rows of them; only for their softmax are they
    filled up to the longest. Where tails are about equal, zeros are summed for what they lack.
    """

    may_waste = 4.0  # it is only scores

    def __init__(self, cache: KvCache, tails: Sequence[DecodeRow]) -> None:
        super().__init__(cache, tails)
        heads, num_queries, width = cache.num_heads, cache.num_query_heads, cache.head_dim
        blocks = [np.array(tail.blocks) for tail in tails]
        if self._table_BN.numel() <= _MAY_FILL * sum(map(len, blocks)):
            blocks = list(self._table_BN.numpy())
        counts = np.array([len(some) for some in blocks])
        count_X = counts.repeat(num_queries)  # of every tail's every head
        first_X = np.cumsum(count_X) - count_X
        head_S = np.arange(len(count_X)).repeat(count_X)
        block_S = np.concatenate([np.tile(some, num_queries) for some in blocks])
        table_S = block_S * heads + head_S % num_queries // (num_queries // heads)
        # The rows of the tables that every sum takes, and where each sum's begin.
        self._key_row = _rows(table_S, width)
        self._key_bag = _int32(np.arange(0, len(table_S) * width + 1, width))
        self._value_row = _rows(table_S, BLOCK_TOKENS)
        self._value_bag = _int32(np.append(first_X, len(table_S)) * BLOCK_TOKENS)
        self._head_S = torch.from_numpy(head_S)
        self._scale = 1.0 / math.sqrt(width)
        self._place_S: Tensor | None = None  # where scores lie when filled up, if that is elsewhere
        most = int(counts.max())
        if counts.min() < most:
            within_S = np.arange(len(head_S)) - first_X[head_S]
            self._place_S = torch.from_numpy(head_S * most + within_S)
        shape = (len(tails), num_queries, most * BLOCK_TOKENS)
        self._score_BHM = cache.key_rows[0].new_empty(shape)

    def attend(self, layer: int, q_BHC: Tensor, window: int) -> Tensor:
        """Returns the attention output of each decode row, [B, H * C]."""
        q_SC = (q_BHC * self._scale).flatten(0, 1).index_select(0, self._head_S)
        score_SW = torch.embedding_bag(
            self._cache.key_rows[layer], self._key_row, self._key_bag, False, 0, False,
            q_SC.view(-1), True,
        )[0]  # fmt: skip
        if self._place_S is None:
            score_BHM = score_SW.view(self._score_BHM.shape)
        else:
            score_BHM = self._score_BHM
            score_BHM.view(-1, BLOCK_TOKENS).index_copy_(0, self._place_S, score_SW)
        score_BHM.masked_fill_(self.hidden(window), -math.inf)
        weight_XW = torch.softmax(score_BHM, dim=-1).view(-1, BLOCK_TOKENS)
        if self._place_S is not None:
            weight_XW = weight_XW.index_select(0, self._place_S)
        seen = torch.embedding_bag(
            self._cache.value_rows[layer], self._value_row, self._value_bag, False, 0, False,
            weight_XW.view(-1), True,
        )[0]  # fmt: skip
        return seen.view(len(score_BHM), -1)


def _rows(table_S: np.ndarray, count: int) -> Tensor:
    """Returns this many consecutive rows for each entry."""
    return _int32(table_S[:, None] * count + np.arange(count)).view(-1)


def _int32(numbers: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int32))


class _GatheredTails(_Tails):
    """Copies the keys and values that each decode row sees: for devices and types
    without weighted sums."""

    may_waste = 1.25

    def attend(self, layer: int, q_BHC: Tensor, window: int) -> Tensor:
        """Returns the attention output of each decode row, [B, H * C]."""
        k_BKMC, v_BKMC = self._cache.gather(layer, self._table_BN)
        q_BKGC = torch.unflatten(q_BHC, 1, (k_BKMC.shape[1], -1))
        mask = ~self.hidden(window)[:, None]
        out_BKGC = F.scaled_dot_product_attention(q_BKGC, k_BKMC, v_BKMC, attn_mask=mask)
        return out_BKGC.flatten(1)


class _PromptRows:
    """The prompt parts of a step: those that start a prompt as in training, others one by one."""

    def __init__(self, cache: KvCache, parts: Sequence[PrefillSpan]) -> None:
        self._sizes: list[int] = []
        self._kinds: list[Attention] = []
        for is_continued, some in groupby(parts, key=lambda part: part.past > 0):
            stretches = list(some)
            if is_continued:
                self._sizes += [part.num_rows for part in stretches]
                self._kinds += [_ContinuedRows(cache, part) for part in stretches]
            else:
                sizes = [part.num_rows for part in stretches]
                self._sizes.append(sum(sizes))
                self._kinds.append(PackedAttention(sizes))

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        if len(self._kinds) == 1:
            return self._kinds[0].attend(layer, q_THC, k_TKC, v_TKC, window)
        split = (torch.split_with_sizes(x, self._sizes) for x in (q_THC, k_TKC, v_TKC))
        return torch.cat(
            [
                kind.attend(layer, q, k, v, window)
                for kind, q, k, v in zip(self._kinds, *split, strict=True)
            ]
        )


class _ContinuedRows:
    """Rows of a prompt that see blocks computed earlier, and each other."""

    def __init__(self, cache: KvCache, part: PrefillSpan) -> None:
        self._cache = cache
        self._num_rows, self._past = part.num_rows, part.past
        self._table_N = torch.tensor(part.blocks, device=cache.device)
        self._masks: dict[int, Tensor] = {}

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        q, k, v = (x.transpose(0, 1) for x in (q_THC, k_TKC, v_TKC))
        past_k, past_v = self._cache.gather(layer, self._table_N)
        k = torch.cat([past_k[:, : self._past], k], dim=1)
        v = torch.cat([past_v[:, : self._past], v], dim=1)
        out_HTC = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=self._mask(window, q.dtype), enable_gqa=True
        )[0]
        return out_HTC.transpose(0, 1).flatten(1)

    def _mask(self, window: int, dtype: torch.dtype) -> Tensor:
        """Returns the mask to add to the scores: made once for all layers, as numbers,
        which is faster."""
        if window not in self._masks:
            place = torch.arange(self._past + self._num_rows, device=self._cache.device)
            distance = place[self._past :, None] - place[None, :]
            is_hidden = (distance < 0) | ((distance >= window) & (window > 0))
            mask = torch.zeros(is_hidden.shape, dtype=dtype, device=self._cache.device)
            self._masks[window] = mask.masked_fill_(is_hidden, -math.inf)
        return self._masks[window]
