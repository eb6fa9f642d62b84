"""A full cache: whose blocks a prompt gets, and when it begins. No model runs here."""

from __future__ import annotations

import itertools

import numpy as np

from tests.engine.work import sample_request, tokens
from tinkex.engine.interface import SampleResult
from tinkex.engine.sampling.block_pool import BlockPool
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS
from tinkex.engine.sampling.kv_eviction import KvEviction
from tinkex.engine.sampling.prefill_queue import PrefillQueue, SamplerLimits
from tinkex.engine.sampling.seating import Seating
from tinkex.engine.sampling.state import PendingPrefix, PrefillChunk, RunningSequence, SampleJob
from tinkex.engine.sampling.stops import StopRule


class Cache:
    """What the sampler chooses with, and the steps it takes, without a model."""

    def __init__(self, num_blocks: int, max_sequences: int = 8) -> None:
        limits = SamplerLimits(
            cache_tokens=BLOCK_TOKENS * num_blocks,
            prefill_tokens=512,
            beside_tokens=256,
            short_tokens=64,
            max_sequences=max_sequences,
        )
        self.pool = BlockPool(num_blocks)
        self.queue = PrefillQueue(limits, self.pool)
        self.seating = Seating(max_sequences)
        self.eviction = KvEviction(self.pool, self.seating, self.queue)
        self._numbers = itertools.count(1)

    def prefix(
        self, name: str, scope: str, length: int, answer: int = 20, samples: int = 1
    ) -> PendingPrefix:
        request = sample_request(
            name,
            tokens=tokens(length, sum(map(ord, name))),
            max_tokens=answer,
            cache_scope=scope,
            num_samples=samples,
        )
        job = SampleJob(
            request=request,
            weights=None,
            stop=StopRule(frozenset(), (), lambda _: ""),
            max_new=answer,
            result=SampleResult(request_id=name),
            unfinished=samples,
        )
        random = np.random.default_rng(0)
        return PendingPrefix(
            job, [RunningSequence(job, i, random, next(self._numbers)) for i in range(samples)]
        )

    def wait(self, name: str, scope: str, length: int, answer: int = 20) -> None:
        self.queue.add(self.prefix(name, scope, length, answer))

    def run(
        self, name: str, scope: str, num_blocks: int, samples: int = 1
    ) -> list[RunningSequence]:
        """Sequences that run with so many blocks each."""
        length = BLOCK_TOKENS * (num_blocks - 1)
        prefix = self.prefix(name, scope, BLOCK_TOKENS, answer=2 * length, samples=samples)
        for sequence in prefix.sequences:
            blocks = self.pool.take(num_blocks)
            assert blocks is not None
            sequence.blocks, sequence.tokens = blocks, [1] * (length - BLOCK_TOKENS)
            self.seating.add(sequence)
        return prefix.sequences

    def step(self) -> list[PrefillChunk]:
        """The parts of one step; running sequences write a token each."""
        self.seating.balance()
        self.eviction.new_step()
        seats = self.seating.allowance(self.queue.claims())
        parts = self.queue.next_parts(len(self.seating.running), seats, self.eviction)
        for sequence in self.seating.running:
            sequence.tokens.append(1)
        self.queue.finish_parts(parts)
        return parts

    def begun(self) -> dict[str, int]:
        """The tokens computed of each prompt half way."""
        return {prefix.job.request.request_id: prefix.done for prefix in self.queue.begun()}


def test_a_prompt_that_lost_its_blocks_in_a_step_does_not_begin_without_a_seat() -> None:
    """Tenant a's share of seats falls below what it has when b comes, so its count is negative."""
    cache = Cache(num_blocks=60)
    cache.run("greedy", "a", num_blocks=13, samples=2)
    for number in range(7):
        cache.wait(f"a{number}", "a", BLOCK_TOKENS * 4 + number)
    for prefix in cache.queue.prefixes()[1:]:  # half way, as after steps without room for more
        blocks = cache.pool.take(5)
        assert blocks is not None
        prefix.blocks = blocks
        cache.queue._begun.add(prefix)
    for number in range(6):
        cache.wait(f"b{number}", "b", 100 + number, answer=10)
    for _ in range(6):
        cache.step()
    assert "b0" not in cache.begun(), "b's prompts were computed"


def test_a_prompt_does_not_begin_with_no_tokens_of_it() -> None:
    cache = Cache(num_blocks=60)
    running = cache.run("greedy", "a", num_blocks=28, samples=2)
    cache.wait("fills", "b", 250, answer=20)  # six tokens of the budget are left
    cache.wait("next", "b", 300, answer=20)
    parts = cache.step()
    assert [part.end - part.start for part in parts] == [250]
    assert cache.begun() == {}
    assert cache.seating.running == running, "none lost its blocks for a prompt that cannot begin"


def test_a_newcomer_gets_blocks_of_sequences_that_were_computed_again() -> None:
    cache = Cache(num_blocks=100)
    for number in range(4):
        (sequence,) = cache.run(f"a{number}", "a", num_blocks=25)
        sequence.protect(BLOCK_TOKENS * 25)
    cache.wait("new", "b", BLOCK_TOKENS, answer=4)
    assert [part.prefix.scope for part in cache.step()] == ["b"]
    assert len(cache.seating.running) == 3, "one is enough"


def test_sequences_computed_again_lose_their_blocks_last() -> None:
    cache = Cache(num_blocks=100)
    running = [*cache.run("a", "a", num_blocks=25), *cache.run("c", "a", num_blocks=75)]
    running[1].protect(BLOCK_TOKENS * 25)
    cache.wait("new", "b", BLOCK_TOKENS * 2, answer=4)
    cache.step()
    assert cache.seating.running == running[1:]


def test_no_more_sequences_than_needed_lose_their_blocks() -> None:
    cache = Cache(num_blocks=100)
    (large,) = cache.run("large", "a", num_blocks=80)
    small = [cache.run(f"small{number}", "a", num_blocks=4)[0] for number in range(5)]
    cache.wait("new", "b", BLOCK_TOKENS * 60, answer=4)
    cache.step()
    assert large not in cache.seating.running
    assert cache.seating.running == small, "the small ones would not have been enough"


def test_samples_that_share_their_prompt_make_room_for_a_newcomer() -> None:
    cache = Cache(num_blocks=100)
    first, second = cache.run("shared", "a", num_blocks=2, samples=2)
    prompt = cache.pool.take(96)
    assert prompt is not None
    cache.pool.share(prompt)
    first.blocks, second.blocks = [*prompt, *first.blocks], [*prompt, *second.blocks]
    cache.wait("new", "b", BLOCK_TOKENS * 20, answer=4)
    assert [part.prefix.scope for part in cache.step()] == ["b"]


def test_prompts_of_two_tenants_that_do_not_fit_together_are_both_computed() -> None:
    cache = Cache(num_blocks=100)
    for scope in "ab":
        cache.wait(scope, scope, BLOCK_TOKENS * 60, answer=4)
    complete: list[str] = []
    for _ in range(40):
        for part in cache.step():
            if part.prefix.is_complete:
                complete.append(part.prefix.scope)
                cache.queue.give_back(part.prefix)
    assert sorted(complete) == ["a", "b"]


def test_blocks_are_counted_once_a_step_however_many_tenants_wait(monkeypatch) -> None:
    cache = Cache(num_blocks=400, max_sequences=256)
    for number in range(40):
        cache.run(f"r{number}", f"t{number % 20}", num_blocks=10)
    for number in range(20):
        cache.wait(f"w{number}", f"t{number}", BLOCK_TOKENS * 4, answer=BLOCK_TOKENS * 10)
    counts = []
    holders = cache.eviction._holders
    monkeypatch.setattr(cache.eviction, "_holders", lambda: counts.append(1) or holders())
    assert cache.step() == []
    assert len(counts) == 1
