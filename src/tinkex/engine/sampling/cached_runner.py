"""Base class of the runners of the lean decoder: its KV cache, and weights laid out
for few rows."""

from __future__ import annotations

from functools import cached_property

from tinkex.engine.model.decoder import Decoder
from tinkex.engine.ops.linear import FrozenLinear
from tinkex.engine.sampling.block_pool import BlockPool
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, FIRST_BLOCK, KvCache
from tinkex.engine.sampling.prefill_queue import SamplerLimits

__all__ = ["CachedRunner"]


class CachedRunner:
    """The lean decoder. Its packed weights and its cache are made when they are first needed."""

    def __init__(self, decoder: Decoder, limits: SamplerLimits) -> None:
        self._decoder = decoder
        self._num_blocks = limits.cache_tokens // BLOCK_TOKENS
        self.pool = BlockPool(self._num_blocks, FIRST_BLOCK, remembers=limits.reuses_prompts)

    @cached_property
    def _packed(self) -> Decoder:
        return self._decoder.with_packed_weights()

    @cached_property
    def _cache(self) -> KvCache:
        return KvCache(self._decoder.spec, self._num_blocks, self._decoder.head_VD)

    @property
    def head(self) -> FrozenLinear:
        """The unembedding."""
        return self._packed.head

    def trim(self) -> None:
        """Frees the cache unless a sequence holds blocks in it; cached prefixes are forgotten."""
        if not self.pool.num_owned:
            self.pool.forget()
            self.__dict__.pop("_cache", None)

    def copy_block(self, source: int, target: int) -> None:
        """Copies the content of one block to another."""
        self._cache.copy(source, target)
