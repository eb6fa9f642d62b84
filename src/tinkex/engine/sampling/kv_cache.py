"""The keys and values of sequences, in blocks of a few tokens.

A sequence lies in a list of blocks anywhere in the cache. A block may belong to several sequences
(samples of one prompt, prompts that begin alike); a shared block is never written to. Which block
belongs to whom is the pool's affair; this holds the numbers.

Keys lie features first, values tokens first: so that the attention of one query, which sums rows of
either with weights (`paged_attention`), reads long runs of memory.

Shapes: L layers · N blocks · K key/value heads · C features of a head · W tokens of a block ·
T rows to be stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinkex.engine.model.spec import DecoderSpec

__all__ = [
    "BLOCK_TOKENS",
    "FIRST_BLOCK",
    "WASTE_BLOCK",
    "ZERO_BLOCK",
    "KvCache",
    "Places",
    "blocks_for",
    "bytes_per_token",
]

Places = tuple[Tensor, Tensor]
"""Where rows are stored: the block of each row, and its index in the block."""

BLOCK_TOKENS = 64  # fewer make attention to scattered blocks slower, more find fewer beginnings
ZERO_BLOCK = 0  # always zero: padding of short block lists
WASTE_BLOCK = 1  # target of padding rows
FIRST_BLOCK = 2  # the first one that can hold a sequence


def bytes_per_token(spec: DecoderSpec, element_size: int = 4) -> int:
    """Returns the cache memory of one token in all layers, in bytes."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * element_size


def blocks_for(num_tokens: int) -> int:
    """Returns the number of blocks that hold so many tokens."""
    return -(-num_tokens // BLOCK_TOKENS)


class KvCache:
    """Memory for `num_blocks` blocks. On a CPU the system gives it when it is first written to."""

    def __init__(self, spec: DecoderSpec, num_blocks: int, like: Tensor) -> None:
        count = num_blocks + FIRST_BLOCK
        heads, width = spec.num_kv_heads, spec.head_dim
        self.num_heads, self.head_dim = heads, width
        self.num_query_heads = spec.num_heads
        self._k_LNKCW = like.new_empty(spec.num_layers, count, heads, width, BLOCK_TOKENS)
        self._v_LNKWC = like.new_empty(spec.num_layers, count, heads, BLOCK_TOKENS, width)
        self.clear([ZERO_BLOCK, WASTE_BLOCK])
        # Views made once: a step needs them for every layer.
        keys, values = self._k_LNKCW.unbind(0), self._v_LNKWC.unbind(0)
        self._keys_NWKC = [k.permute(0, 3, 1, 2) for k in keys]
        self._values_NWKC = [v.permute(0, 2, 1, 3) for v in values]
        self.key_rows = [k.view(-1, BLOCK_TOKENS) for k in keys]
        self.value_rows = [v.view(-1, width) for v in values]
        self.pointers = [(k.data_ptr(), v.data_ptr()) for k, v in zip(keys, values, strict=True)]

    @property
    def device(self) -> torch.device:
        """The device of the cache."""
        return self._k_LNKCW.device

    @property
    def can_sum_rows(self) -> bool:
        """Whether weighted sums of rows, taken by index, are fast on the cache's device."""
        return self.device.type == "cpu" and self._k_LNKCW.dtype == torch.float32

    def clear(self, blocks: list[int]) -> None:
        """Zeroes blocks. Unwritten positions are masked, but must be finite: values that a broken
        adapter left there would spoil the sum despite the mask (0 * nan)."""
        for block in blocks:
            self._k_LNKCW[:, block] = 0
            self._v_LNKWC[:, block] = 0

    def copy(self, source: int, target: int) -> None:
        """Copies the content of one block to another."""
        self._k_LNKCW[:, target] = self._k_LNKCW[:, source]
        self._v_LNKWC[:, target] = self._v_LNKWC[:, source]

    def places(self, blocks: Sequence[int], slots: Sequence[int]) -> Places:
        """Returns where rows are stored, given each one's block and its index in it."""
        block_T, slot_T = (torch.tensor(x, dtype=torch.int64) for x in (blocks, slots))
        return block_T.to(self.device), slot_T.to(self.device)

    def store(self, layer: int, places: Places, k_TKC: Tensor, v_TKC: Tensor) -> None:
        """Writes rows to their places."""
        self._keys_NWKC[layer].index_put_(places, k_TKC)
        self._values_NWKC[layer].index_put_(places, v_TKC)

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of lists of blocks [..., n], as [..., K, n * W, C]."""
        k, v = self._keys_NWKC[layer][blocks], self._values_NWKC[layer][blocks]
        return k.flatten(-4, -3).transpose(-3, -2), v.flatten(-4, -3).transpose(-3, -2)
