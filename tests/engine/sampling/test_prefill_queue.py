"""Which prompts a step computes: shorter ones first within bounds, tenants in turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.engine.work import run_samples, sample_request, tokens
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.engine.interface import SampleResult
from tinkex.engine.options import EngineOptions
from tinkex.engine.sampling.block_pool import BlockPool
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, blocks_for
from tinkex.engine.sampling.prefill_order import PrefillOrder
from tinkex.engine.sampling.prefill_queue import PrefillQueue, SamplerLimits
from tinkex.engine.sampling.state import PendingPrefix, PrefillChunk, RunningSequence, SampleJob
from tinkex.engine.sampling.stops import StopRule
from tinkex.engine.torch_engine import TorchEngine

LIMITS = SamplerLimits(
    cache_tokens=BLOCK_TOKENS * 64,
    prefill_tokens=512,
    beside_tokens=256,
    short_tokens=64,
    max_sequences=8,
)


def _prefix(name: str, length: int = 32, answer: int = 10, scope: str = "") -> PendingPrefix:
    request = sample_request(
        name, tokens=tokens(length, sum(map(ord, name))), max_tokens=answer, cache_scope=scope
    )
    job = SampleJob(
        request=request,
        weights=None,
        stop=StopRule(frozenset(), (), lambda _: ""),
        max_new=answer,
        result=SampleResult(request_id=name),
        unfinished=1,
    )
    return PendingPrefix(job, [RunningSequence(job, 0, np.random.default_rng(0))])


def _names(prefixes: list[PendingPrefix]) -> list[str]:
    return [prefix.job.request.request_id for prefix in prefixes]


def _sizes(parts: list[PrefillChunk]) -> dict[str, int]:
    return {part.prefix.job.request.request_id: part.end - part.start for part in parts}


class _FreeBlocks:
    """Blocks that are free, and no others."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def take_for(self, prefix: PendingPrefix, count: int) -> list[int] | None:
        return self._pool.take(count)

    def may_pass(self, prefix: PendingPrefix, waiting: PendingPrefix) -> bool:
        return False


class _Queue(PrefillQueue):
    """A queue in which every sequence may have a seat, unless told otherwise."""

    def __init__(self, limits: SamplerLimits, pool: BlockPool) -> None:
        super().__init__(limits, pool)
        self._free = _FreeBlocks(pool)

    def next(self, num_running: int, **seats: int) -> list[PrefillChunk]:
        wanted = {name: claim.wanted for name, claim in self.claims().items()}
        return self.next_parts(num_running, wanted | seats, self._free)


def _queue(limits: SamplerLimits = LIMITS) -> tuple[_Queue, BlockPool]:
    pool = BlockPool(limits.cache_tokens // BLOCK_TOKENS)
    return _Queue(limits, pool), pool


def _order(*prefixes: PendingPrefix) -> PrefillOrder:
    order = PrefillOrder()
    for prefix in prefixes:
        order.add(prefix)
    return order


def test_short_requests_pass_longer_ones_and_equals_stay_in_line() -> None:
    order = _order(
        _prefix("long", 400, 100), _prefix("a", 40), _prefix("b", 40), _prefix("short", 8, 1)
    )
    assert _names(list(order.in_fair_order())) == ["short", "a", "b", "long"]


def test_no_request_is_passed_for_ever() -> None:
    order = _order(_prefix("long", 100, 1))
    passed = 0
    for number in range(100_000):
        order.add(_prefix(f"short-{number}", 10, 1))
        first = next(order.in_fair_order())
        order.remove(first)
        if first.job.request.request_id == "long":
            break
        passed += 10
    assert 10_000 < passed <= 512 * 100, "many short ones, but not more than its own work allows"


def test_a_huge_request_lets_pass_no_more_than_a_fixed_amount() -> None:
    order = _order(_prefix("huge", 100, 100_000))
    passed = 0
    for number in range(1000):
        order.add(_prefix(f"short-{number}", 1000, 1))
        first = next(order.in_fair_order())
        order.remove(first)
        if first.job.request.request_id == "huge":
            break
        passed += 1000
    assert passed <= 2**18


def test_tenants_take_turns_by_tokens() -> None:
    order = _order(*(_prefix(f"greedy-{n}", 10, 1, "greedy") for n in range(200)))
    served = []
    for _ in range(6):
        prefix = next(order.in_fair_order())
        order.charge(prefix, len(prefix.tokens))
        order.remove(prefix)
        served.append(prefix.scope)
        if len(served) == 3:
            order.add(_prefix("polite-1", 300, 100, "polite"))
            order.add(_prefix("polite-2", 300, 100, "polite"))
    assert served[3] == "polite", "whatever others ask for, a newcomer is next"
    assert served[4:] == ["greedy"] * 2, "and then those who had less"


def test_waiting_costs_no_turn() -> None:
    queue, pool = _queue()
    taken = pool.take(64)  # nothing can begin
    for number in range(50):
        queue.add(_prefix(f"many-{number}", 40, 10, "many"))
    queue.add(_prefix("few", 40, 10, "few"))
    for _ in range(100):
        assert queue.next(num_running=1) == []
    pool.release(taken or [])
    queue.add(_prefix("new", 40, 10, "new"))
    first = queue.next(num_running=1)
    scopes = {part.prefix.scope for part in first}
    assert scopes == {"many", "few", "new"}, "as if none had waited"


def test_a_stream_of_quick_requests_does_not_keep_another_tenant_out() -> None:
    queue, _ = _queue()
    for number in range(20):
        queue.add(_prefix(f"b-{number}", 60, 10, "b"))
    computed = 0
    for number in range(40):
        queue.add(_prefix(f"a-{number}", 20, 1, "a"))
        parts = queue.next(num_running=1)
        computed += sum(part.end - part.start for part in parts if part.prefix.scope == "b")
        for prefix in queue.finish_parts(parts):
            queue.give_back(prefix)
    assert computed >= 700, "every second step has room for it"


def test_what_was_sent_back_goes_where_its_request_was() -> None:
    order = _order(_prefix("other", 8, 1, "other"))
    ran = _prefix("ran", 400, 100, "third")
    order.add(ran)
    order.remove(ran)
    order.add(_prefix("later", 400, 100, "third"))
    order.add(_prefix("short", 8, 2, "third"))
    order.put_back(PendingPrefix(ran.job, ran.sequences))
    own = [name for name in _names(list(order.in_fair_order())) if name != "other"]
    assert own == ["short", "ran", "later"], "a short request passes it as it would have before"
    assert _names(list(order.in_fair_order()))[:2] in (["other", "short"], ["short", "other"])
    order.charge(next(each for each in order.in_fair_order() if each.job is ran.job), 400)
    first = next(order.in_fair_order())
    assert _names([first]) == ["other"], "computing it again is its tenant's cost"


def test_what_is_sent_back_after_a_pause_is_not_behind_all_that_comes() -> None:
    order = _order(*(_prefix(f"before-{number}", 400, 10_000) for number in range(50)))
    last = list(order.in_fair_order())[-1]
    for prefix in list(order.in_fair_order()):
        order.remove(prefix)
    order.put_back(PendingPrefix(last.job, last.sequences))
    order.add(_prefix("new", 400, 10_000))
    assert next(order.in_fair_order()).job is last.job


def test_the_rest_of_a_prompt_that_was_split_waits_for_its_first_half() -> None:
    limits = SamplerLimits(cache_tokens=BLOCK_TOKENS * 64, beside_tokens=64, max_sequences=4)
    queue, pool = _queue(limits)
    prefix = _prefix("many", 320, 10)
    prefix.sequences = [RunningSequence(prefix.job, i, np.random.default_rng(i)) for i in range(8)]
    queue.add(prefix)
    owned = []
    for _ in range(4):
        parts = queue.next(num_running=1)
        assert len(parts) == 1
        queue.finish_parts(parts)
        owned.append(pool.num_owned)
    assert owned == [blocks_for(320)] * 4, "one copy of the prompt"


def test_a_prompt_half_way_uses_what_another_has_computed_meanwhile() -> None:
    queue, pool = _queue()
    long = _prefix("long", 600, 100)
    queue.add(long)
    queue.finish_parts(queue.next(num_running=1))
    assert long.done == 256
    short = _prefix("short", 600, 2)
    short.tokens = long.tokens[:330].copy()
    queue.add(short)
    parts = queue.next(num_running=1)
    assert [(part.prefix, part.start, part.end) for part in parts] == [(short, 256, 330)]
    queue.finish_parts(parts)
    parts = queue.next(num_running=1)
    assert [(part.prefix, part.start, part.end) for part in parts] == [(long, 320, 576)]
    num_shared = 320 // BLOCK_TOKENS
    assert long.blocks[:num_shared] == short.blocks[:num_shared]
    queue.finish_parts(parts)
    queue.give_back(long)
    queue.give_back(short)
    assert pool.num_owned == 0


def test_a_step_that_completes_a_request_has_no_parts_of_others() -> None:
    queue, _ = _queue()
    queue.add(_prefix("long", 400, 100))
    queue.add(_prefix("quick", 70, 1))
    queue.add(_prefix("too large for one step", 330, 1))
    queue.add(_prefix("quick too", 90, 1))
    assert _sizes(queue.next(num_running=1)) == {"quick": 70}
    queue, _ = _queue()
    queue.add(_prefix("first", 20, 1))
    queue.add(_prefix("second", 30, 1))
    queue.add(_prefix("long", 400, 100))
    assert _sizes(queue.next(num_running=1)) == {"first": 20, "second": 30}


def test_a_request_that_a_step_completes_passes_others_of_its_tenant_once() -> None:
    queue, _ = _queue()
    queue.add(_prefix("before", 8, 2))
    queue.add(_prefix("quick", 30, 1))
    queue.add(_prefix("another tenant's", 16, 100, "b"))
    assert _sizes(queue.next(num_running=1)) == {"quick": 30, "another tenant's": 16}
    assert "before" in _sizes(queue.next(num_running=1)), "in the next step it is not held"


@pytest.mark.parametrize("length", [20, 100, 101, 250])
def test_a_tenant_with_a_finished_prompt_is_spared_a_second_step(length) -> None:
    queue, _ = _queue(replace(LIMITS, quick_tokens=100))
    for name in ("quick", "other"):  # steps are short from here on
        queue.add(_prefix(name, 20, 1))
        queue.finish_parts(queue.next(num_running=1))
    queue.add(_prefix("one token", length, 1))
    assert _sizes(queue.next(num_running=1)) == {"one token": length}


def test_steps_are_short_only_while_quick_requests_come() -> None:
    queue, _ = _queue()
    queue.add(_prefix("long", 1000, 100))
    parts = queue.next(num_running=1)
    assert _sizes(parts) == {"long": 256}
    queue.finish_parts(parts)
    queue.add(_prefix("quick", 20, 1))
    queue.finish_parts(queue.next(num_running=1))
    parts = queue.next(num_running=1)
    assert _sizes(parts) == {"long": 64}
    queue.finish_parts(parts)
    for _ in range(40):
        queue.next(num_running=1)
    assert _sizes(queue.next(num_running=1)) == {"long": 256}


def test_parts_become_shorter_as_a_prompt_goes_on() -> None:
    queue, _ = _queue(replace(LIMITS, attention_tokens=256))
    long = _prefix("long", 1000, 100)
    queue.add(long)
    sizes = []
    while not long.is_complete:
        parts = queue.next(num_running=1)
        sizes.append(_sizes(parts)["long"])
        queue.finish_parts(parts)
    assert sizes == [256, 128, 64, 64, 64, 64, 64, 64, 64, 64, 64, 40]


def test_long_prompts_of_one_tenant_leave_another_its_share_of_the_time() -> None:
    limits = replace(LIMITS, attention_tokens=256, cache_tokens=BLOCK_TOKENS * 128)
    queue, _ = _queue(limits)
    old = _prefix("old", 3000, 100, "a")
    queue.add(old)
    for _ in range(30):
        queue.finish_parts(queue.next(num_running=1))
    before, costs = old.done, {"a": 0.0, "b": 0.0}
    for number in range(20):
        queue.add(_prefix(f"new-{number}", 200, 100, "b"))
    for _ in range(18):
        parts = queue.next(num_running=1)
        for part in parts:
            size = part.end - part.start
            costs[part.prefix.scope] += size * (1 + part.start / 256)
        queue.finish_parts(parts)
    assert old.done > before
    assert 0.5 < costs["b"] / costs["a"] < 2


def test_steps_of_a_long_prompt_are_bounded_by_the_sizes_of_the_model(tmp_path) -> None:
    folder = make_tiny_model(tmp_path / "model", max_position_embeddings=2048)
    engine = TorchEngine(EngineOptions(models={"tiny": str(folder)}, prefill_tokens=256))
    engine.submit_sample(sample_request("long", tokens=tokens(2000), max_tokens=1))
    steps = 1
    while not engine.step_sampling(0.0).finished:
        steps += 1
    assert steps > 15, "8 if a token counted the same wherever it is"


def test_a_prompt_half_way_can_be_passed_and_goes_on_where_it_was() -> None:
    queue, pool = _queue()
    long = _prefix("long", 600, 100)
    queue.add(long)
    queue.finish_parts(queue.next(num_running=1))
    assert long.done == 256
    queue.add(_prefix("short", 250, 2))
    parts = queue.next(num_running=1)
    assert _sizes(parts) == {"short": 250}
    (short,) = queue.finish_parts(parts)
    assert long.done == 256
    queue.give_back(short)
    parts = queue.next(num_running=1)
    assert [(part.start, part.end) for part in parts] == [(256, 512)]
    queue.finish_parts(parts)
    queue.clear()
    assert pool.num_owned == 0
    assert len(queue) == 0


def test_cancelled_prompts_give_their_blocks_back() -> None:
    queue, pool = _queue()
    queue.add(_prefix("gone", 600))
    queue.add(_prefix("stays", 700))
    queue.finish_parts(queue.next(num_running=1))
    assert pool.num_owned > 0
    queue.remove({"gone"})
    assert pool.num_owned == 0
    assert _names(queue.prefixes()) == ["stays"]


def test_long_scores_make_no_short_steps() -> None:
    queue, _ = _queue()
    queue.add(_prefix("score", 400, 1))
    assert _sizes(queue.next(num_running=1)) == {"score": 256}


def test_requests_that_end_with_their_prompt_need_neither_seats_nor_blocks() -> None:
    queue, pool = _queue()
    taken = pool.take(64)
    queue.add(_prefix("waits", 40, 10))
    queue.add(_prefix("quick", 40, 1))
    for seats in (1, 0):
        parts = queue.next(num_running=1, waits=seats)
        assert _sizes(parts) == {"quick": 40}
        (quick,) = queue.finish_parts(parts)
        assert quick.blocks == []
        queue.add(_prefix("quick", 40, 1))
    pool.release(taken or [])


def test_prompts_without_a_seat_hold_up_no_others() -> None:
    queue, _ = _queue()
    queue.add(_prefix("waits", 40, 10))
    queue.add(_prefix("long score", 300, 1))
    queue.add(_prefix("seated", 50, 20))
    assert _sizes(queue.next(num_running=1, waits=0)) == {"seated": 50, "long score": 192}


def test_seats_are_kept_for_prompts_half_way() -> None:
    queue, _ = _queue()
    queue.add(_prefix("long", 600, 100))
    assert (queue.claims()["long"].held, queue.claims()["long"].wanted) == (0, 1)
    queue.finish_parts(queue.next(num_running=1))
    assert (queue.claims()["long"].held, queue.claims()["long"].wanted) == (1, 1)


def test_who_waits_for_room_is_not_passed_by_those_who_need_less() -> None:
    queue, pool = _queue(SamplerLimits(cache_tokens=BLOCK_TOKENS * (blocks_for(600) + 1)))
    queue.add(_prefix("large", 600, 2))  # all blocks but one
    taken = pool.take(4)
    queue.add(_prefix("later", 601, 2))
    queue.add(_prefix("small but later", 602, 2))
    assert queue.next(num_running=1) == []
    pool.release(taken or [])
    assert _sizes(queue.next(num_running=1)).keys() == {"large"}


@pytest.mark.parametrize("quick", [0, 40])
def test_running_sequences_skip_a_step_for_quick_requests_now_and_then(engine, quick) -> None:
    long = sample_request("long", max_tokens=30, stop=[], seed=1)
    alone = run_samples(engine, long)["long"].sequences[0]
    engine.submit_sample(long)
    engine.step_sampling(0.0)
    steps, done = 1, {}
    while "long" not in done:
        if steps <= quick:  # one comes in every step
            one = sample_request(f"quick-{steps}", max_tokens=1, tokens=tokens(20, steps))
            engine.submit_sample(one)
        done |= {each.request_id: each for each in engine.step_sampling(0.0).finished}
        steps += 1
    rests = steps - 30
    assert rests == 0 if not quick else 5 <= rests <= 10, "one step in four at most"
    np.testing.assert_array_equal(done["long"].sequences[0].tokens, alone.tokens)
    assert len(done) == 1 + min(quick, steps - 1), "and none of the others is held up"
