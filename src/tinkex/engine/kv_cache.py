"""The keys and values of sequences being decoded, in slots of a few sizes.

A sequence lies in one slot, contiguous, so that attention reads it in place: gathering pages
would copy the whole cache at every step on a CPU. Slots come in capacities of powers of two, one
pool each; a sequence that outgrows its slot moves to the next pool. The live slots of a pool are
always its first ones (the last fills the hole when one is freed), so a step takes one attention
call per pool.

Shapes: L layers · S slots · K key/value heads · M capacity of a slot · C features of a head ·
B sequences decoded · G query heads per key/value head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinkex.engine.model_config import ModelConfig

__all__ = ["CacheSlot", "DecodeAttention", "KvCache", "bytes_per_token"]

_SMALLEST_CAPACITY = 64


def bytes_per_token(config: ModelConfig, element_size: int = 4) -> int:
    """Cache memory one token takes in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * element_size


@dataclass(slots=True)
class CacheSlot:
    """Where one sequence lies, and how many of its tokens are there."""

    capacity: int
    index: int
    length: int


class KvCache:
    """All slots. `max_tokens` bounds the sum of the capacities in use."""

    def __init__(self, config: ModelConfig, max_tokens: int, like: Tensor) -> None:
        self._config = config
        self._like = like
        self._max_tokens = max_tokens
        self._pools: dict[int, _Pool] = {}

    def used_tokens(self) -> int:
        """The capacity taken by live slots."""
        return sum(capacity * len(pool.slots) for capacity, pool in self._pools.items())

    def has_room(self, lengths: Sequence[int]) -> bool:
        """Whether sequences of these lengths can be added."""
        wanted = sum(capacity_for(length) for length in lengths)
        return self.used_tokens() + wanted <= self._max_tokens

    def add(self, kept: list[tuple[Tensor, Tensor]], start: int, end: int) -> CacheSlot:
        """A slot holding rows start..end of a packed batch's keys and values."""
        slot = self._pool(capacity_for(end - start)).take(end - start)
        pool = self._pools[slot.capacity]
        for layer, (k_TKC, v_TKC) in enumerate(kept):
            pool.k_LSKMC[layer, slot.index, :, : slot.length] = k_TKC[start:end].transpose(0, 1)
            pool.v_LSKMC[layer, slot.index, :, : slot.length] = v_TKC[start:end].transpose(0, 1)
        return slot

    def make_room(self, slot: CacheSlot) -> bool:
        """Whether the slot can take one more token, moved to a larger pool if it was full."""
        if slot.length < slot.capacity:
            return True
        larger = slot.capacity * 2
        if self.used_tokens() + slot.capacity > self._max_tokens:
            return False
        moved = self._pool(larger).take(slot.length)
        old, new = self._pools[slot.capacity], self._pools[larger]
        for source, goal in ((old.k_LSKMC, new.k_LSKMC), (old.v_LSKMC, new.v_LSKMC)):
            goal[:, moved.index, :, : slot.length] = source[:, slot.index, :, : slot.length]
        self.free(slot)
        slot.capacity, slot.index = larger, moved.index
        new.slots[moved.index] = slot
        return True

    def free(self, slot: CacheSlot) -> None:
        """Gives the slot back; an empty pool gives back its memory."""
        pool = self._pools[slot.capacity]
        pool.release(slot)
        if not pool.slots:
            del self._pools[slot.capacity]

    def pool_of(self, slot: CacheSlot) -> _Pool:
        """The pool the slot is in."""
        return self._pools[slot.capacity]

    def _pool(self, capacity: int) -> _Pool:
        if capacity not in self._pools:
            self._pools[capacity] = _Pool(self._config, capacity, self._like)
        return self._pools[capacity]


def capacity_for(length: int) -> int:
    """The smallest slot that holds `length` tokens and one to come."""
    return max(_SMALLEST_CAPACITY, 1 << length.bit_length())


class _Pool:
    """Slots of one capacity; the live ones are the first `len(slots)`."""

    def __init__(self, config: ModelConfig, capacity: int, like: Tensor) -> None:
        shape = (config.num_layers, 0, config.num_kv_heads, capacity, config.head_dim)
        self.capacity = capacity
        self.slots: list[CacheSlot] = []
        self.k_LSKMC = like.new_empty(shape)
        self.v_LSKMC = like.new_empty(shape)

    def take(self, length: int) -> CacheSlot:
        if len(self.slots) == self.k_LSKMC.shape[1]:
            self.k_LSKMC, self.v_LSKMC = self._grown(self.k_LSKMC), self._grown(self.v_LSKMC)
        slot = CacheSlot(self.capacity, len(self.slots), length)
        self.slots.append(slot)
        return slot

    def release(self, slot: CacheSlot) -> None:
        # What a ruined adapter leaves behind must not reach the next sequence in its place.
        last = self.slots.pop()
        for cache in (self.k_LSKMC, self.v_LSKMC):
            cache[:, slot.index, :, : slot.length] = 0
            if last is not slot:
                cache[:, slot.index, :, : last.length] = cache[:, last.index, :, : last.length]
                cache[:, last.index, :, : last.length] = 0
        if last is not slot:
            self.slots[slot.index] = last
            last.index = slot.index

    def _grown(self, old: Tensor) -> Tensor:
        layers, count, *rest = old.shape
        # All free memory is finite: masked places are multiplied by zero, and 0 * inf is not 0.
        new = old.new_zeros((layers, max(1, 2 * count), *rest))
        new[:, :count] = old
        return new


class DecodeAttention:
    """One new token for each of these sequences, attending to all before it and itself.

    Counts the new token into every slot once, when built; `attend` then stores it layer by layer.
    """

    def __init__(self, cache: KvCache, slots: Sequence[CacheSlot], device: torch.device) -> None:
        by_capacity: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            slot.length += 1
            by_capacity.setdefault(slot.capacity, []).append(row)
        self._parts = [
            _PoolPart(cache.pool_of(slots[rows[0]]), rows, [slots[r] for r in rows], device)
            for rows in by_capacity.values()
        ]

    def attend(
        self, layer: int, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, window: int
    ) -> Tensor:
        """What each new token sees."""
        out_THC = torch.empty_like(q_THC)
        for part in self._parts:
            rows = part.rows
            out_THC[rows] = part.attend(layer, q_THC[rows], k_TKC[rows], v_TKC[rows], window)
        return out_THC.flatten(1)


class _PoolPart:
    """The sequences of a step that lie in one pool, in the order of their slots."""

    def __init__(
        self, pool: _Pool, rows: list[int], slots: list[CacheSlot], device: torch.device
    ) -> None:
        order = sorted(range(len(rows)), key=lambda i: slots[i].index)
        indices = [slots[i].index for i in order]
        self.rows = torch.tensor([rows[i] for i in order], device=device)
        self._pool = pool
        self._slots = torch.tensor(indices, device=device)
        self._covers_pool = len(indices) == len(pool.slots)
        self._last = torch.tensor([slots[i].length - 1 for i in order], device=device)
        self._extent = int(self._last.max()) + 1
        self._masks: dict[int, Tensor] = {}

    def attend(
        self, layer: int, q_BHC: Tensor, k_BKC: Tensor, v_BKC: Tensor, window: int
    ) -> Tensor:
        k_BKMC = self._store(self._pool.k_LSKMC[layer], k_BKC)
        v_BKMC = self._store(self._pool.v_LSKMC[layer], v_BKC)
        # The query heads that share a key/value head are taken as several queries of it.
        q_BKGC = torch.unflatten(q_BHC, 1, (k_BKC.shape[1], -1))
        out_BKGC = F.scaled_dot_product_attention(
            q_BKGC, k_BKMC, v_BKMC, attn_mask=self._mask(window)
        )
        return out_BKGC.flatten(1, 2)

    def _store(self, cache_SKMC: Tensor, new_BKC: Tensor) -> Tensor:
        """Puts the new rows in their places; the view of all places up to the longest's end."""
        cache_SKMC[self._slots, :, self._last] = new_BKC
        if self._covers_pool:
            return cache_SKMC[: len(self._slots), :, : self._extent]
        return cache_SKMC[self._slots, :, : self._extent]

    def _mask(self, window: int) -> Tensor:
        if window not in self._masks:
            place = torch.arange(self._extent, device=self._last.device)
            is_seen = place[None, :] <= self._last[:, None]
            if window:
                is_seen &= place[None, :] > self._last[:, None] - window
            self._masks[window] = is_seen[:, None, None, :]
        return self._masks[window]
