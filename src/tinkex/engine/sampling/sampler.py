"""Continuous batching: requests join and leave the running batch between any two tokens.

A step writes one token for each sequence in it and computes a part of the prompts that wait,
adapters mixed, all in one pass through the model. A prompt is computed once for all its samples,
which then share its blocks of the cache. A request that only scores its prompt, or wants one token,
ends with its prompt. Where more could run than there are seats, they are shared between tenants and
requests (`Seating`): sequences are parked and resume later. Where a step of all rows takes many
times as long as one of a few, tenants with few have steps of their own in between (`SmallSteps`);
no answer depends on which rows share a step, beyond how products are rounded. When the cache is
full, sequences go back to the queue with the tokens they have (`KvEviction`). Either way a
sequence's random stream goes on where it was.

What a sampling parameter does is in `logits_processors` and `token_choice`; parameters are declared
in `tinkex.types.sampling`.

Shapes: B sequences · T rows · D hidden · V vocabulary.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection

import numpy as np
import torch

from tinkex.engine.interface import ModelInfo, SampledSequence, SampleRequest, SampleResult
from tinkex.engine.lora.adapter import AdapterWeights, LoraBatch
from tinkex.engine.model.lm_head import Head, chunk_rows
from tinkex.engine.sampling.block_pool import prefix_keys
from tinkex.engine.sampling.extend import extend, settle
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, blocks_for
from tinkex.engine.sampling.kv_eviction import KvEviction
from tinkex.engine.sampling.logits_processors import BUILTIN, Pipeline
from tinkex.engine.sampling.prefill_queue import PrefillQueue, SamplerLimits
from tinkex.engine.sampling.prompt_scores import PromptToScore, score_prompts
from tinkex.engine.sampling.runner import StepRunner
from tinkex.engine.sampling.seating import Seating
from tinkex.engine.sampling.small_steps import SmallSteps
from tinkex.engine.sampling.state import PendingPrefix, PrefillChunk, RunningSequence, SampleJob
from tinkex.engine.sampling.step_output import StepOutput
from tinkex.engine.sampling.stops import StopRule, Stops, TextDecoder
from tinkex.engine.sampling.streamed_tokens import StreamedTokens
from tinkex.engine.sampling.token_choice import stream
from tinkex.engine.sampling.token_history import TokenHistory
from tinkex.engine.sampling.validation import max_new_tokens

__all__ = ["Sampler", "SamplerLimits"]


_DECODE_SKIP_INTERVAL = 4
"""Running sequences skip at most one of this many steps."""


class Sampler:
    """Samples on one base model. `submit` and `cancel` may be called from any thread."""

    def __init__(
        self,
        runner: StepRunner,
        info: ModelInfo,
        decode: TextDecoder,
        limits: SamplerLimits,
        pipeline: Pipeline = BUILTIN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner, self._info, self._decode = runner, info, decode
        self._pipeline, self._clock, self._limits = pipeline, clock, limits
        self._pool = runner.pool
        self._inbox: deque[PendingPrefix] = deque()
        self._cancelled: set[str] = set()
        self._prefill_queue = PrefillQueue(limits, self._pool)
        self._complete: list[PendingPrefix] = []  # in this step
        self.streamed = StreamedTokens()
        self._seating = Seating(limits.max_sequences)
        self._eviction: KvEviction | None = None
        if self._pool is not None:
            self._eviction = KvEviction(self._pool, self._seating, self._prefill_queue)
        self._numbers = itertools.count(1)
        self._steps_since_skip = 0
        self._small_steps = SmallSteps()
        self._is_balanced = False
        self._lock = threading.Lock()

    @property
    def num_running(self) -> int:
        """The number of sequences being decoded."""
        return len(self._seating.running)

    @property
    def num_parked(self) -> int:
        """The number of sequences that wait for a seat with their blocks in the cache."""
        return len(self._seating.parked)

    @property
    def num_waiting(self) -> int:
        """The number of unfinished or preempted prompts, and of parked sequences."""
        return len(self._inbox) + len(self._prefill_queue) + self.num_parked

    def bytes_for(self, weights: AdapterWeights) -> int:
        """Returns the bytes that an adapter of this layout takes if it can be sampled from."""
        return weights.size_bytes + self._runner.copy_bytes(weights.layout)

    def submit(self, request: SampleRequest, weights: AdapterWeights | None) -> None:
        """Queues a valid request to run with these weights."""
        stops = Stops.of(request.params)
        eos = self._info.eos_token_ids if stops.at_eos else ()
        job = SampleJob(
            request=request,
            weights=weights,
            stop=StopRule(frozenset({*stops.token_ids, *eos}), stops.strings, self._decode),
            max_new=max_new_tokens(request, self._info),
            result=SampleResult(request_id=request.request_id),
            unfinished=request.num_samples,
            is_processed=self._pipeline.is_active(request.params),
        )
        job.result.sequences = [_EMPTY] * request.num_samples
        prompt_ids = None
        if self._pipeline.reads_history(request.params):
            prompt_ids = np.unique(request.tokens).astype(np.int64)
        with self._lock:
            sequences = [
                RunningSequence(
                    job,
                    i,
                    stream(request.params.seed, i),
                    next(self._numbers),
                    None if prompt_ids is None else TokenHistory(prompt_ids),
                )
                for i in range(request.num_samples)
            ]
            self._inbox.append(PendingPrefix(job, sequences))

    def cancel(self, request_id: str) -> None:
        """Drops the request at the next step."""
        with self._lock:
            self._cancelled.add(request_id)

    @torch.inference_mode()
    def step(self) -> list[SampleResult]:
        """Runs one step, of all tenants or of those with few rows; returns the finished results."""
        self._take_inbox()
        if not self._is_balanced:
            self._seating.balance()
        wanted = self._wanted_rows()
        tenants = self._small_steps.choose(wanted)
        began = self._clock()
        sequences, parts = self._plan(tenants)
        if not sequences and not parts and len(tenants) < len(wanted):
            tenants = wanted.keys()  # the others' prompts wait for blocks
            sequences, parts = self._plan(tenants)
        if not sequences and not parts:
            return []
        is_whole = len(tenants) == len(wanted)
        skips_decode = is_whole and self._skips_decode(parts)
        if skips_decode:
            sequences = []
        finished = self._compute(sequences, parts)
        # Between small steps of the same sequences, seats need not be counted again.
        self._is_balanced = not is_whole and not parts
        if not skips_decode:
            num_rows = _num_rows(sequences, parts)
            self._small_steps.record(num_rows, self._clock() - began, is_whole=is_whole)
        return finished

    def _wanted_rows(self) -> dict[str, int]:
        """Returns each tenant's rows: its running sequences and its prompt tokens to compute."""
        rows = Counter(each.job.scope for each in self._seating.running)
        num_seats, at_seat_limit = self._limits.max_sequences, set[str]()
        if self.num_running + self.num_parked >= num_seats:
            at_seat_limit = {key for key, held in rows.items() if held * len(rows) >= num_seats}
        for tenant, num_tokens in self._prefill_queue.num_tokens(at_seat_limit).items():
            rows[tenant] += min(num_tokens, self._limits.beside_tokens)
        return rows

    def _plan(self, tenants: Collection[str]) -> tuple[list[RunningSequence], list[PrefillChunk]]:
        """Returns what a step of these tenants computes."""
        self._grow(tenants)
        parts: list[PrefillChunk] = []
        if self._prefill_queue.has_any_of(tenants):
            seats = self._seating.allowance(self._prefill_queue.claims())
            parts = self._prefill_queue.next_parts(self.num_running, seats, self._eviction, tenants)
        # Fewer run now if prompts got blocks of some.
        return [each for each in self._seating.running if each.job.scope in tenants], parts

    def _compute(
        self, sequences: list[RunningSequence], parts: list[PrefillChunk]
    ) -> list[SampleResult]:
        """Runs one pass through the model and handles its output; returns the finished results."""
        rows = self._runner.run(sequences, parts)
        for sequence in sequences:
            self._remember_full_block(sequence)
        self._complete = prefixes = self._finish_parts(parts, rows)
        self._score(prefixes)
        finished = self._extend(sequences, prefixes, rows, parts)
        for sequence in sequences:
            if sequence.ended is not None:
                self._release(sequence)
        self._seating.keep(lambda each: each.ended is None)
        for prefix in prefixes:
            self._fork(prefix)
        self._complete = []
        return finished

    def trim(self) -> None:
        """Frees what only saves time: cached prefixes, and memory laid out for steps."""
        if not (self.num_running or self.num_waiting):
            self._runner.trim()

    def drop_all(self) -> list[str]:
        """Drops everything queued or running; returns the ids of the lost requests."""
        self._take_inbox()
        prefixes = [*self._prefill_queue.prefixes(), *self._complete]
        sequences = self._seating.sequences()
        jobs = [prefix.job for prefix in prefixes] + [each.job for each in sequences]
        self._prefill_queue.clear()
        for prefix in self._complete:
            self._prefill_queue.give_back(prefix)
        self._complete = []
        for sequence in sequences:
            self._release(sequence)
        self._seating.keep(lambda _: False)
        if self._pool is not None:
            self._pool.release_all()  # also those of a prompt that was about to begin
        self.streamed.drop(lambda _: True)
        return list(dict.fromkeys(job.request.request_id for job in jobs))

    def _take_inbox(self) -> None:
        with self._lock:
            for prefix in self._inbox:
                self._prefill_queue.add(prefix)
                if prefix.job.request.stream:
                    self.streamed.add_request(prefix.job.request.request_id)
            self._inbox.clear()
            cancelled, self._cancelled = self._cancelled, set()
        if not cancelled:
            return
        self._prefill_queue.remove(cancelled)
        self.streamed.drop(cancelled.__contains__)
        for sequence in self._seating.sequences():
            if sequence.job.request.request_id in cancelled:
                self._release(sequence)
                self._seating.remove(sequence)

    def _skips_decode(self, parts: list[PrefillChunk]) -> bool:
        """Whether running sequences skip this step, so that requests it completes end sooner."""
        self._steps_since_skip += 1
        is_due = self._steps_since_skip >= _DECODE_SKIP_INTERVAL
        skips_decode = is_due and any(part.completes for part in parts)
        if skips_decode:
            self._steps_since_skip = 0
        return skips_decode

    def _grow(self, tenants: Collection[str]) -> None:
        """Gives running sequences of these tenants blocks for their next token; evicts where the
        cache is full."""
        if self._pool is None or self._eviction is None:
            return
        self._eviction.new_step()
        for sequence in [each for each in self._seating.running if each.job.scope in tenants]:
            has_room = len(sequence.blocks) >= blocks_for(sequence.num_tokens)
            while not has_room and sequence.blocks:  # none if it was preempted meanwhile
                taken = self._pool.take(1)
                if taken is None:
                    self._eviction.free_for(sequence)
                    continue
                self._runner.clear_block(taken[0])
                sequence.blocks += taken
                has_room = True

    def _finish_parts(self, parts: list[PrefillChunk], rows: StepOutput) -> list[PendingPrefix]:
        """Keeps the rows that prompts are scored by; returns the prefixes that are complete."""
        for part, start in zip(parts, rows.part_rows, strict=True):
            prefix = part.prefix
            if not prefix.job.is_scored and part.num_kept and _is_scoring(prefix):
                prefix.hidden.append(rows.hidden_TD[start : start + part.num_kept])
        return self._prefill_queue.finish_parts(parts)

    def _score(self, prefixes: list[PendingPrefix]) -> None:
        """Computes the prompt scores of complete prefixes."""
        unscored = [prefix for prefix in prefixes if not prefix.job.is_scored]
        hidden, prompts, ends = [], [], []
        count = 0
        for prefix in unscored:
            prefix.job.is_scored = True
            if prefix.hidden:
                start = count - prefix.first_row
                prompts.append(PromptToScore(prefix.job.request, start, prefix.job.result))
                hidden += prefix.hidden
                count += len(prefix.tokens) - prefix.first_row
                ends.append((count, prefix.job))
        if prompts:
            score_prompts(self._head(ends), torch.cat(hidden), prompts)

    def _extend(
        self,
        sequences: list[RunningSequence],
        prefixes: list[PendingPrefix],
        rows: StepOutput,
        parts: list[PrefillChunk],
    ) -> list[SampleResult]:
        """Gives every sequence its next token; returns the results this completes."""
        last_row = {
            part.prefix: start + part.num_kept - 1
            for part, start in zip(parts, rows.part_rows, strict=True)
        }
        pairs = list(zip(rows.sequence_rows, sequences, strict=True))
        pairs += [
            (last_row[prefix], sequence) for prefix in prefixes for sequence in prefix.sequences
        ]
        if not pairs:
            return []
        pairs.sort(key=lambda pair: pair[0])  # rows of one adapter lie side by side
        row_B = torch.tensor([row for row, _ in pairs], device=rows.hidden_TD.device)
        extended = [sequence for _, sequence in pairs]
        hidden_BD = rows.hidden_TD.index_select(0, row_B)
        head = self._head([(n + 1, each.job) for n, each in enumerate(extended)])
        for start, end in chunk_rows(len(extended), head.vocab_size):
            logits_BV = head.rows(start, end).logits(hidden_BD[start:end])
            extend(extended[start:end], logits_BV, self._pipeline)
        self._seating.charge(extended)
        results = [result for each in extended if (result := settle(each)) is not None]
        if self.streamed.is_active:
            self.streamed.note(extended)
            self.streamed.forget_finished([each.request_id for each in results])
        return results

    def _fork(self, prefix: PendingPrefix) -> None:
        """Starts the prefix's sequences, which share its full blocks; each has its own last."""
        going_on = [each for each in prefix.sequences if each.ended is None]
        if self._pool is None:
            for sequence in going_on:
                self._seating.add(sequence)
            return
        num_full = len(prefix.tokens) // BLOCK_TOKENS
        full, partial = prefix.blocks[:num_full], prefix.blocks[num_full:]
        last_key = prefix.keys[-1] if prefix.keys and going_on else prefix.job.root_key
        for place, sequence in enumerate(going_on):
            sequence.last_key = last_key
            own = partial if place == 0 else self._pool.take(len(partial))
            if own is None:
                self._prefill_queue.put_back(PendingPrefix(sequence.job, [sequence]))
                continue
            for source, target in zip(partial, own, strict=True):
                if source != target:
                    self._runner.copy_block(source, target)
            self._pool.share(full)
            sequence.blocks = [*full, *own]
            if prefix.is_restart:
                sequence.protect(len(prefix.tokens))
            self._seating.add(sequence)
        self._pool.release(full if going_on else prefix.blocks)
        prefix.start_over()

    def _remember_full_block(self, sequence: RunningSequence) -> None:
        """Caches the newest block once it is full."""
        if self._pool is None or sequence.num_tokens % BLOCK_TOKENS:
            return
        part = sequence.all_tokens()[-BLOCK_TOKENS:]
        (sequence.last_key,) = prefix_keys(sequence.last_key, part, BLOCK_TOKENS)
        self._pool.remember(sequence.blocks[-1], sequence.last_key)

    def _head(self, ends: list[tuple[int, SampleJob]]) -> Head:
        """Returns the head for rows of these jobs; each job is given with the end of its rows."""
        runs = ((end, None if job.weights is None else job.weights.pairs) for end, job in ends)
        return Head(self._runner.head, LoraBatch.merged(runs))

    def _release(self, sequence: RunningSequence) -> None:
        if self._pool is not None:
            self._pool.release(sequence.blocks)
        sequence.blocks = []


def _num_rows(sequences: list[RunningSequence], parts: list[PrefillChunk]) -> dict[str, int]:
    """Returns the rows of a step by tenant."""
    rows = Counter(each.job.scope for each in sequences)
    for part in parts:
        rows[part.prefix.scope] += part.end - part.start
    return rows


def _is_scoring(prefix: PendingPrefix) -> bool:
    request = prefix.job.request
    return bool(
        request.prompt_logprobs
        or request.topk_prompt_logprobs
        or request.prompt_alt_tokens_k
        or request.target_prompt_logprobs is not None
    )


_EMPTY = SampledSequence(
    tokens=np.empty(0, np.int32), logprobs=np.empty(0, np.float32), stop_reason="length"
)
