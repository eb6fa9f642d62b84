"""The sampler's state: requests, the sequences they need, and prompts being computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from torch import Tensor

from tinkex.engine.interface import SampledSequence, SampleRequest, SampleResult, TopK
from tinkex.engine.lora.adapter import AdapterWeights
from tinkex.engine.sampling.block_pool import prefix_keys
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS
from tinkex.engine.sampling.prompt_scores import first_row_needed
from tinkex.engine.sampling.stops import StopRule
from tinkex.engine.sampling.token_history import TokenHistory

__all__ = ["PendingPrefix", "PrefillChunk", "RunningSequence", "SampleJob"]

_MOST_PROTECTED = 512
"""Tokens a recomputed sequence may write before it can lose its blocks to a prompt."""


@dataclass(eq=False, slots=True)
class SampleJob:
    """A request being sampled, with the weights that were current when it was submitted."""

    request: SampleRequest
    weights: AdapterWeights | None
    stop: StopRule
    max_new: int
    result: SampleResult
    unfinished: int
    is_processed: bool = False  # its rows go through logits processors
    is_scored: bool = False
    due: int = 0  # order among its tenant's requests: the smallest is next

    @property
    def scope(self) -> str:
        """The tenant it belongs to."""
        return self.request.cache_scope

    @property
    def root_key(self) -> bytes:
        """The prefix key's root: everything but the tokens that keys and values depend on,
        and the scope."""
        identity = 0 if self.weights is None else self.weights.identity
        return f"{identity} {self.request.cache_scope}".encode()


@dataclass(eq=False, slots=True)
class RunningSequence:
    """One sample being written. All its tokens but the newest lie in `blocks`."""

    job: SampleJob
    index: int
    random: np.random.Generator
    number: int = 0  # the older of two sequences has the smaller one
    history: TokenHistory | None = None  # of its tokens, if a logits processor reads it
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    topk: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    last_key: bytes = b""  # of the last full block
    protected_until: int = 0  # tokens of its answer
    num_streamed: int = 0  # tokens handed out so far
    ended: Literal["stop", "length"] | None = None

    @property
    def is_protected(self) -> bool:
        """Whether it was recomputed so lately that prompts of others may not take its blocks."""
        return len(self.tokens) < self.protected_until

    def protect(self, num_computed: int) -> None:
        """Records that this many tokens were recomputed."""
        self.protected_until = len(self.tokens) + min(num_computed, _MOST_PROTECTED)

    @property
    def num_tokens(self) -> int:
        """The number of tokens of prompt and answer so far."""
        return int(self.job.request.tokens.size) + len(self.tokens)

    def all_tokens(self) -> np.ndarray:
        """The tokens of the prompt and the answer so far."""
        return np.concatenate([self.job.request.tokens, self.tokens]).astype(np.int64)

    def to_answer(self) -> SampledSequence:
        """Returns the sample as the caller gets it."""
        topk = None
        if self.topk:
            topk = TopK(
                token_ids=np.stack([ids for ids, _ in self.topk]).astype(np.int32),
                logprobs=np.stack([logprobs for _, logprobs in self.topk]),
            )
        return SampledSequence(
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            stop_reason=self.ended or "length",
            topk=topk,
        )


class PendingPrefix:
    """The tokens that sequences of one job begin with: a prompt, or a sample that
    lost its blocks."""

    def __init__(self, job: SampleJob, sequences: list[RunningSequence]) -> None:
        self.job = job
        self.sequences = sequences
        self.tokens = sequences[0].all_tokens()
        self.blocks: list[int] = []
        self.done = 0  # how many tokens were computed or found in the cache
        self.due = 0  # order in the queue: the smallest is next
        self.first_row = len(self.tokens) - 1 if job.is_scored else first_row_needed(job.request)
        self.hidden: list[Tensor] = []  # rows from `first_row` on, until all are there
        self._keys: list[bytes] | None = None

    @property
    def keys(self) -> list[bytes]:
        """The prefix keys of its full blocks."""
        if self._keys is None:
            self._keys = prefix_keys(self.job.root_key, self.tokens, BLOCK_TOKENS)
        return self._keys

    @property
    def is_complete(self) -> bool:
        """Whether its last token was computed."""
        return self.done == len(self.tokens)

    @property
    def scope(self) -> str:
        """The tenant it belongs to."""
        return self.job.scope

    @property
    def is_restart(self) -> bool:
        """Whether it holds tokens of an answer: those of a sample that lost its blocks."""
        return len(self.tokens) > self.job.request.tokens.size

    @property
    def ends_with_prompt(self) -> bool:
        """Whether the request ends with these tokens: it scores the prompt, or needs
        one token more."""
        return self.job.max_new == 1

    @property
    def most_blocks_skipped(self) -> int:
        """The maximum number of cached blocks it may use; rows whose hidden state is
        needed are computed."""
        return self.first_row // BLOCK_TOKENS

    def split(self, count: int) -> PendingPrefix:
        """Splits off the first sequences and returns a prefix for them; the others stay."""
        first, self.sequences = self.sequences[:count], self.sequences[count:]
        prefix = PendingPrefix(self.job, first)
        prefix.due = self.due
        return prefix

    def start_over(self) -> None:
        """Drops what was computed."""
        self.blocks, self.done, self.hidden = [], 0, []


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens `start..end` of a prefix, to be computed in this step."""

    prefix: PendingPrefix
    start: int
    end: int

    @property
    def completes(self) -> bool:
        """Whether this step completes the request."""
        return self.prefix.ends_with_prompt and self.end == len(self.prefix.tokens)

    @property
    def num_kept(self) -> int:
        """The number of its last rows whose hidden states are needed for scores or
        the next token."""
        return max(0, self.end - max(self.start, self.prefix.first_row))
