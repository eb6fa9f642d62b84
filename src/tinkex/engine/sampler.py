"""Continuous batching: requests join and leave the running batch between any two tokens.

Each step first prefills waiting prompts (packed like training, up to a token budget; a prompt is
computed once for all its samples), then decodes one token for every running sequence, adapters
mixed. A request that only scores its prompt, or wants one token, ends with its prefill and never
touches the cache. When the cache is full the youngest sequence steps back into the queue with the
tokens it has, to be prefilled again; its random stream goes on where it was.

Shapes: T rows of a batch · B sequences · D hidden · V vocabulary.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.attention import PackedAttention
from tinkex.engine.head import Head, chunk_rows
from tinkex.engine.interface import (
    ModelInfo,
    RequestError,
    SampledSequence,
    SampleRequest,
    SampleResult,
    TopK,
)
from tinkex.engine.kv_cache import CacheSlot, DecodeAttention, KvCache
from tinkex.engine.lora import LoraBatch
from tinkex.engine.model import Backbone, Decoder
from tinkex.engine.ops import LoraPair
from tinkex.engine.prompt_scores import PromptRows, score_prompts
from tinkex.engine.sample_validation import max_new_tokens
from tinkex.engine.stops import StopRule, TextDecoder
from tinkex.engine.token_choice import ChoiceRule, choose, stream, top_logprobs

__all__ = ["Sampler", "SamplerLimits"]

Pairs = dict[str, LoraPair]


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """How much may run at once."""

    cache_tokens: int
    prefill_tokens: int = 1024
    max_sequences: int = 256


@dataclass(eq=False, slots=True)
class _Job:
    """A request on its way, with the weights it was given when it came."""

    request: SampleRequest
    pairs: Pairs | None
    rule: ChoiceRule
    stop: StopRule
    max_new: int
    result: SampleResult
    unfinished: int
    is_scored: bool = False


@dataclass(eq=False, slots=True)
class _Sequence:
    """One sample being written."""

    job: _Job
    index: int
    random: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    topk: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    slot: CacheSlot | None = None
    ended: Literal["stop", "length"] | None = None

    def all_tokens(self) -> np.ndarray:
        """The prompt and what follows it so far."""
        return np.concatenate([self.job.request.tokens, self.tokens]).astype(np.int64)


@dataclass(eq=False, slots=True)
class _Entry:
    """Sequences that wait for a prefill of the same tokens."""

    job: _Job
    sequences: list[_Sequence]

    @property
    def num_tokens(self) -> int:
        return int(self.job.request.tokens.size) + len(self.sequences[0].tokens)


class Sampler:
    """All sampling on one base model. `submit` and `cancel` may be called from any thread."""

    def __init__(
        self, backbone: Backbone, info: ModelInfo, decode: TextDecoder, limits: SamplerLimits
    ) -> None:
        self._backbone, self._info, self._decode, self._limits = backbone, info, decode, limits
        self._cache = None
        if isinstance(backbone, Decoder):
            self._cache = KvCache(backbone.config, limits.cache_tokens, backbone.head_VD)
        self._inbox: deque[_Entry] = deque()
        self._cancelled: set[str] = set()
        self._waiting: deque[_Entry] = deque()
        self._prefilling: list[_Entry] = []
        self._running: list[_Sequence] = []
        self._lock = threading.Lock()

    @property
    def num_running(self) -> int:
        """Sequences being decoded."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Prompts not yet begun, or sent back to the queue."""
        return len(self._inbox) + len(self._waiting)

    def submit(self, request: SampleRequest, pairs: Pairs | None) -> None:
        """Queues a valid request to run with these weights."""
        eos = self._info.eos_token_ids if request.stop_at_eos else ()
        job = _Job(
            request=request,
            pairs=pairs,
            rule=ChoiceRule(request.temperature, request.top_k, request.top_p),
            stop=StopRule(
                frozenset({*request.stop_token_ids, *eos}), request.stop_strings, self._decode
            ),
            max_new=max_new_tokens(request, self._info),
            result=SampleResult(request_id=request.request_id),
            unfinished=request.num_samples,
        )
        job.result.sequences = [_EMPTY] * request.num_samples
        sequences = [_Sequence(job, i, stream(request.seed, i)) for i in range(request.num_samples)]
        with self._lock:
            self._inbox.append(_Entry(job, sequences))

    def cancel(self, request_id: str) -> None:
        """Drops the request at the next step."""
        with self._lock:
            self._cancelled.add(request_id)

    @torch.no_grad()
    def step(self) -> list[SampleResult]:
        """Prefills what fits, decodes one token for everything that runs; the finished results."""
        self._take_inbox()
        finished: list[SampleResult] = []
        self._prefilling = self._admit()
        ready = list(self._running)
        if self._prefilling:
            finished += self._prefill(self._prefilling)
            self._prefilling = []
        if ready:
            finished += self._decode_step(ready)
        return finished

    def drop_all(self) -> list[str]:
        """Forgets everything queued or running; the ids of the requests that are lost."""
        self._take_inbox()
        entries = [*self._prefilling, *self._waiting]
        jobs = [entry.job for entry in entries] + [s.job for s in self._running]
        self._waiting.clear()
        self._prefilling = []
        for sequence in self._running:
            self._release(sequence)
        self._running.clear()
        return list(dict.fromkeys(job.request.request_id for job in jobs))

    def _take_inbox(self) -> None:
        with self._lock:
            self._waiting.extend(self._inbox)
            self._inbox.clear()
            cancelled, self._cancelled = self._cancelled, set()
        if not cancelled:
            return
        self._waiting = deque(e for e in self._waiting if e.job.request.request_id not in cancelled)
        for sequence in list(self._running):
            if sequence.job.request.request_id in cancelled:
                self._release(sequence)
                self._running.remove(sequence)

    def _admit(self) -> list[_Entry]:
        """The entries to prefill now: first come first served, within all limits."""
        batch: list[_Entry] = []
        tokens = 0
        lengths: list[int] = []  # of the sequences this batch will put into the cache
        seats = self._limits.max_sequences - len(self._running)
        while self._waiting and seats > 0:
            entry = self._waiting[0]
            if batch and tokens + entry.num_tokens > self._limits.prefill_tokens:
                break
            wanted = self._count_fitting(entry, lengths, seats)
            if wanted == 0:
                break
            batch.append(_Entry(entry.job, entry.sequences[:wanted]))
            entry.sequences = entry.sequences[wanted:]
            if not entry.sequences:
                self._waiting.popleft()
            tokens += entry.num_tokens if entry.sequences else batch[-1].num_tokens
            seats -= wanted
            if self._needs_cache(entry.job):
                lengths += [batch[-1].num_tokens] * wanted
        return batch

    def _count_fitting(self, entry: _Entry, lengths: list[int], seats: int) -> int:
        """How many of the entry's sequences can begin now."""
        wanted = min(seats, len(entry.sequences))
        if self._cache is None or not self._needs_cache(entry.job):
            return wanted
        while wanted and not self._cache.has_room(lengths + [entry.num_tokens] * wanted):
            wanted -= 1
        if wanted == 0 and not self._running and not lengths:
            return 1  # alone it was found to fit before it was let in
        return wanted

    @staticmethod
    def _needs_cache(job: _Job) -> bool:
        return job.max_new > 1

    def _prefill(self, batch: list[_Entry]) -> list[SampleResult]:
        batch = _by_adapter(batch)
        parts = [entry.sequences[0].all_tokens() for entry in batch]
        lengths = [len(part) for part in parts]
        ends = np.cumsum(lengths)
        head = self._head([(int(e), b.job.pairs) for e, b in zip(ends, batch, strict=True)])
        hidden_TD, kept = self._packed(np.concatenate(parts), lengths, head.lora)
        score_prompts(head, hidden_TD, self._unscored(batch, ends - lengths))
        rows = torch.from_numpy(
            np.repeat(ends - 1, [len(entry.sequences) for entry in batch]).astype(np.int64)
        )
        sequences = [sequence for entry in batch for sequence in entry.sequences]
        last = Head(head.linear, head.lora.select(rows))
        finished = self._extend(sequences, last, hidden_TD[rows.to(hidden_TD.device)])
        for entry, start, end in zip(batch, ends - lengths, ends, strict=True):
            for sequence in entry.sequences:
                if sequence.ended is None:
                    if self._cache is not None:
                        sequence.slot = self._cache.add(kept, int(start), int(end))
                    self._running.append(sequence)
        return finished

    def _unscored(self, batch: list[_Entry], starts: np.ndarray) -> list[PromptRows]:
        prompts = []
        for entry, start in zip(batch, starts, strict=True):
            if not entry.job.is_scored:
                entry.job.is_scored = True
                prompts.append(PromptRows(entry.job.request, int(start), entry.job.result))
        return prompts

    def _decode_step(self, ready: list[_Sequence]) -> list[SampleResult]:
        sequences = _by_adapter(self._with_room(ready))
        if not sequences:
            return []
        head = self._head([(n + 1, s.job.pairs) for n, s in enumerate(sequences)])
        hidden_BD = self._next_hidden(sequences, head.lora)
        finished = self._extend(sequences, head, hidden_BD)
        for sequence in sequences:
            if sequence.ended is not None:
                self._release(sequence)
        self._running = [s for s in self._running if s.ended is None]
        return finished

    def _next_hidden(self, sequences: list[_Sequence], lora: LoraBatch) -> Tensor:
        """The hidden state after each sequence's newest token."""
        device = self._backbone.head_VD.device
        if self._cache is None:
            parts = [sequence.all_tokens() for sequence in sequences]
            lengths = [len(part) for part in parts]
            lora = lora.stretch(lengths)
            hidden_TD, _ = self._packed(np.concatenate(parts), lengths, lora)
            return hidden_TD[torch.from_numpy(np.cumsum(lengths) - 1)]
        assert isinstance(self._backbone, Decoder), "only the lean decoder has a cache"
        slots = [s.slot for s in sequences if s.slot is not None]
        tokens_B = torch.tensor([s.tokens[-1] for s in sequences], device=device)
        positions_B = torch.tensor([slot.length for slot in slots], device=device)
        attention = DecodeAttention(self._cache, slots, device)
        return self._backbone.hidden(tokens_B, positions_B, attention, lora)

    def _with_room(self, ready: list[_Sequence]) -> list[_Sequence]:
        """The sequences that can take a token; where the cache is full the youngest step back."""
        if self._cache is None:
            return ready
        kept = list(ready)
        for sequence in ready:
            while sequence.slot is not None and not self._cache.make_room(sequence.slot):
                youngest = kept.pop()
                self._release(youngest)
                self._running.remove(youngest)
                self._waiting.appendleft(_Entry(youngest.job, [youngest]))
        return kept

    def _packed(
        self, tokens: np.ndarray, lengths: list[int], lora: LoraBatch
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        tokens_T = torch.from_numpy(tokens).to(self._backbone.head_VD.device)
        if not isinstance(self._backbone, Decoder):
            return self._backbone.packed_hidden(tokens_T, lengths, lora), []
        attention = PackedAttention(lengths, keeps_kv=True)
        positions_T = torch.cat([torch.arange(length) for length in lengths])
        return self._backbone.hidden(tokens_T, positions_T, attention, lora), attention.kept

    def _extend(
        self, sequences: list[_Sequence], head: Head, hidden_BD: Tensor
    ) -> list[SampleResult]:
        """Gives every sequence its next token; the results this completes."""
        finished = []
        for start, end in chunk_rows(len(sequences), head.vocab_size):
            logits_BV = head.rows(start, end).logits(hidden_BD[start:end])
            self._extend_chunk(sequences[start:end], logits_BV)
        for sequence in sequences:
            job = sequence.job
            if not math.isfinite(sequence.logprobs[-1]):
                sequence.ended = "stop"
                job.result = SampleResult(request_id=job.request.request_id, error=_RUINED)
            elif job.stop.is_met(sequence.tokens):
                sequence.ended = "stop"
            elif len(sequence.tokens) >= job.max_new:
                sequence.ended = "length"
            if sequence.ended is not None:
                if job.result.error is None:
                    job.result.sequences[sequence.index] = self._finish(sequence)
                job.unfinished -= 1
                if job.unfinished == 0:
                    finished.append(job.result)
        return finished

    @staticmethod
    def _extend_chunk(sequences: Sequence[_Sequence], logits_BV: Tensor) -> None:
        rules = [s.job.rule for s in sequences]
        choice = choose(logits_BV, rules, [s.random.random() for s in sequences])
        tokens, logprobs = choice.token_N.tolist(), choice.logprob_N.tolist()
        for row, sequence in enumerate(sequences):
            sequence.tokens.append(tokens[row])
            sequence.logprobs.append(logprobs[row])
            k = sequence.job.request.topk_sample_logprobs
            if k:
                best = top_logprobs(
                    choice.tempered_NV[row : row + 1], choice.lse_N[row : row + 1], k
                )
                sequence.topk.append((best[0][0].cpu().numpy(), best[1][0].cpu().numpy()))

    @staticmethod
    def _finish(sequence: _Sequence) -> SampledSequence:
        topk = None
        if sequence.topk:
            topk = TopK(
                token_ids=np.stack([ids for ids, _ in sequence.topk]).astype(np.int32),
                logprobs=np.stack([logprobs for _, logprobs in sequence.topk]),
            )
        return SampledSequence(
            tokens=np.array(sequence.tokens, np.int32),
            logprobs=np.array(sequence.logprobs, np.float32),
            stop_reason=sequence.ended or "length",
            topk=topk,
        )

    def _head(self, runs: list[tuple[int, Pairs | None]]) -> Head:
        return Head(self._backbone.head, LoraBatch.merged(runs))

    def _release(self, sequence: _Sequence) -> None:
        if self._cache is not None and sequence.slot is not None:
            self._cache.free(sequence.slot)
        sequence.slot = None


_Work = TypeVar("_Work", _Entry, _Sequence)


def _by_adapter(work: list[_Work]) -> list[_Work]:
    """The same, those of one adapter side by side, otherwise in their order."""
    order: dict[int, int] = {}
    for one in work:
        order.setdefault(id(one.job.pairs), len(order))
    return sorted(work, key=lambda one: order[id(one.job.pairs)])


_RUINED = RequestError(
    message="The model gives no finite logprobs, so nothing can be sampled from it. Its adapter "
    "was probably ruined by a learning rate far too high; go back to an earlier checkpoint.",
    code="not-finite",
)

_EMPTY = SampledSequence(
    tokens=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), stop_reason="length"
)
