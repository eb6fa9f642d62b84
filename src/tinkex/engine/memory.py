"""Estimates of the memory that work takes, made before the work is admitted.

The estimates are upper bounds: a clear refusal is better than a process killed half way.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import ModelInfo, SampleRequest, TrainRequest
from tinkex.engine.model.lm_head import CHUNK_BYTES
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, blocks_for
from tinkex.engine.sampling.validation import max_new_tokens

__all__ = ["MemoryPlan", "trim_malloc"]

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One base model's share of memory, in bytes, and the bytes that a token costs in it."""

    activation_bytes: int
    cache_bytes: int
    adapter_bytes: int
    train_bytes_per_token: int
    cache_bytes_per_token: int

    @property
    def cache_tokens(self) -> int:
        """The maximum number of tokens in the KV cache."""
        return self.cache_bytes // self.cache_bytes_per_token

    def microbatch_tokens(self, wanted: int) -> int:
        """Returns the size in tokens of the largest micro-batch that fits, at most `wanted`."""
        return max(1, min(wanted, self.activation_bytes // self.train_bytes_per_token))

    def check_train(self, request: TrainRequest) -> None:
        """Returns if the longest sequence fits; shorter ones are split over several passes.

        Raises:
            EngineUserError: it does not.
        """
        longest = max(int(datum.tokens.size) for datum in request.data)
        needed = longest * self.train_bytes_per_token + CHUNK_BYTES
        if needed > self.activation_bytes:
            most = max(0, self.activation_bytes - CHUNK_BYTES) // self.train_bytes_per_token
            raise EngineUserError(
                f"A sequence of {longest} tokens needs about {needed // _MIB} MiB to train, this "
                f"engine has {self.activation_bytes // _MIB} MiB for it. Send sequences of at "
                f"most {most} tokens, or give the engine more memory.",
                code="too-large",
                field="data",
                value=longest,
            )

    def check_adapter(self, held_bytes: int, more_bytes: int) -> None:
        """Returns if weights of `more_bytes` fit beside those already held.

        Raises:
            EngineUserError: they do not.
        """
        if held_bytes + more_bytes > self.adapter_bytes:
            raise EngineUserError(
                f"Another {more_bytes // _MIB} MiB of adapter does not fit: {held_bytes // _MIB} "
                f"of {self.adapter_bytes // _MIB} MiB are taken. Unload adapters or samplers that "
                "are not in use, choose a lower rank, or give the engine more memory.",
                code="engine-full",
                field="rank",
                value=more_bytes,
            )

    def check_sample(self, request: SampleRequest, model: ModelInfo) -> None:
        """Returns if one sequence of the request fits; several can run one after the other.

        Raises:
            EngineUserError: it does not.
        """
        new = max_new_tokens(request, model)
        longest = int(request.tokens.size) + new
        needed = blocks_for(longest - 1)  # the last token is never attended to
        if new > 1 and needed > self.cache_tokens // BLOCK_TOKENS:
            raise EngineUserError(
                f"Prompt and answer of {longest} tokens need about "
                f"{needed * BLOCK_TOKENS * self.cache_bytes_per_token // _MIB} MiB of cache, this "
                f"engine has {self.cache_bytes // _MIB} MiB. Lower max_tokens or shorten the "
                "prompt, or give the engine more memory.",
                code="too-large",
                field="max_tokens",
                value=longest,
            )


def trim_malloc() -> None:
    """Returns freed memory to the system; memory that the allocator keeps would count as ours."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others need it less
    if trim is not None:
        trim(0)
