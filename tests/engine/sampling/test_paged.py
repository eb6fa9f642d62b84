"""The block cache: who owns what, attention over scattered blocks, prompts that are used again."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.conftest import SHAPES
from tests.engine.work import run_samples, sample_request, tokens, warm_up
from tinkex.engine.attention.packed import PackedAttention
from tinkex.engine.interface import LoraSpec
from tinkex.engine.lora.adapter import AdapterWeights, LoraBatch, LoraLayout
from tinkex.engine.lora.rows import RowLora, Run, pair_views
from tinkex.engine.model.config import parse_config, read_json
from tinkex.engine.model.hf_weights import load_decoder
from tinkex.engine.options import EngineOptions
from tinkex.engine.sampling.block_pool import BlockPool, prefix_keys
from tinkex.engine.sampling.forward import InferencePass, OutputRows
from tinkex.engine.sampling.kv_cache import (
    BLOCK_TOKENS,
    FIRST_BLOCK,
    WASTE_BLOCK,
    KvCache,
    blocks_for,
)
from tinkex.engine.sampling.paged_attention import DecodeRow, PrefillSpan, StepAttention
from tinkex.engine.torch_engine import TorchEngine


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_without_gradients_are_the_trainers(shape, model_folder) -> None:
    folder = model_folder(shape)
    config = parse_config(read_json(folder / "config.json"))
    decoder = load_decoder(folder, config, torch.device("cpu"), torch.float32)
    lengths = [9, 9, 40]
    rows_T = torch.from_numpy(np.concatenate([tokens(n) for n in lengths]))
    expected = decoder.forward_hidden(rows_T, lengths, LoraBatch([(58, None)]))
    positions_T = torch.cat([torch.arange(n) for n in lengths])
    with torch.inference_mode():
        found = InferencePass(decoder).hidden(
            rows_T, positions_T, PackedAttention(lengths), RowLora(58, [], [])
        )
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_that_are_wanted_are_those_of_all(shape, model_folder) -> None:
    folder = model_folder(shape)
    config = parse_config(read_json(folder / "config.json"))
    decoder = load_decoder(folder, config, torch.device("cpu"), torch.float32)
    layout = LoraLayout(decoder.groups, LoraSpec(rank=4))
    pairs = pair_views(AdapterWeights(layout, torch.randn(layout.numel) / 8), torch.float32)
    rows_T = torch.from_numpy(np.concatenate([tokens(n) for n in (9, 9, 40)]))
    positions_T = torch.cat([torch.arange(n) for n in (9, 9, 40)])
    batch = rows_T, positions_T, PackedAttention([9, 9, 40]), RowLora(58, [Run(9, 58, pairs)], [])
    row_N = torch.tensor([8, 17, 55, 56, 57, 0])
    wanted = OutputRows(row_N, RowLora(6, [Run(1, 5, pairs)], []))
    with torch.inference_mode():
        runner = InferencePass(decoder)
        expected = runner.hidden(*batch)[row_N]
        found = runner.hidden(*batch, wanted)
    torch.testing.assert_close(found[:5], expected[:5], atol=2e-5, rtol=1e-5)
    base = runner.hidden(*batch[:3], RowLora(58, [], []))[row_N]
    assert not torch.allclose(found[1:5], base[1:5], atol=1e-2), "the adapter counts"


class _Cached:
    """A cache filled with texts in scattered blocks, and what attention over them should give."""

    def __init__(self, tiny, lengths: list[int], *, seed: int = 0) -> None:
        self.config = parse_config(read_json(tiny / "config.json"))
        torch.manual_seed(seed)
        count = sum(blocks_for(n) for n in lengths)
        self.cache = KvCache(self.config, count, torch.zeros(1))
        shuffled = (torch.randperm(count) + FIRST_BLOCK).tolist()
        self.cache.clear(shuffled)
        self.texts = []
        for length in lengths:
            blocks = [shuffled.pop() for _ in range(blocks_for(length))]
            k = torch.randn(length, self.config.num_kv_heads, self.config.head_dim)
            self.texts.append((blocks, k, torch.randn_like(k)))

    def store(self, text: int, start: int, end: int) -> None:
        blocks, k, v = self.texts[text]
        place = np.arange(start, end)
        places = self.cache.places(
            np.array(blocks)[place // BLOCK_TOKENS].tolist(), (place % BLOCK_TOKENS).tolist()
        )
        self.cache.store(0, places, k[start:end], v[start:end])

    def queries(self, count: int) -> torch.Tensor:
        return torch.randn(count, self.config.num_heads, self.config.head_dim)

    def expected(self, text: int, q_THC: torch.Tensor, first: int, window: int) -> torch.Tensor:
        """Attention written out, for queries at places first, first + 1, ..."""
        _, k, v = self.texts[text]
        group = self.config.num_heads // self.config.num_kv_heads
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        rows = []
        for i, q_HC in enumerate(q_THC):
            end = first + i + 1
            start = max(0, end - window) if window else 0
            score = torch.einsum("hc,thc->ht", q_HC, k[start:end]) / math.sqrt(q_HC.shape[-1])
            rows.append(torch.einsum("ht,thc->hc", score.softmax(-1), v[start:end]).flatten())
        return torch.stack(rows)


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("sums_rows", [True, False])
def test_attention_finds_its_blocks_wherever_they_are(
    window, sums_rows, tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KvCache, "can_sum_rows", sums_rows)
    lengths = [1, 65, 4000, 64, 128, 580, 140, 40, 30]  # far enough apart for several groups
    cached = _Cached(tiny, lengths)
    tails, rows = [], []
    for text, length in enumerate(lengths[:6]):
        cached.store(text, 0, length - 1)
        tails.append(DecodeRow(cached.texts[text][0], length))
        rows.append((text, length - 1, length))
    tails.insert(2, None)  # a row without a sequence
    cached.store(6, 0, 128)
    stretches = [PrefillSpan(30), PrefillSpan(6, 128, cached.texts[6][0][:2]), PrefillSpan(40)]
    parts = [(8, 0, 30), (6, 128, 134), (7, 0, 40)]
    blocks, slots, ks, vs = [], [], [], []
    for text, start, end in rows + parts:
        own, k, v = cached.texts[text]
        blocks += [own[i // BLOCK_TOKENS] for i in range(start, end)]
        slots += [i % BLOCK_TOKENS for i in range(start, end)]
        ks.append(k[start:end])
        vs.append(v[start:end])
    empty = torch.full_like(ks[0], 7.0)
    for values in (ks, vs):
        values.insert(2, empty)
    blocks.insert(2, WASTE_BLOCK)
    slots.insert(2, 0)
    stored = len(blocks) - 40  # the last prompt is not kept
    places = cached.cache.places(blocks[:stored], slots[:stored])
    attention = StepAttention(cached.cache, tails, stretches, places)
    q = cached.queries(len(blocks))
    found = attention.attend(0, q, torch.cat(ks), torch.cat(vs), window)
    assert found.isfinite().all()
    row = 0
    for place, (text, start, end) in enumerate(rows + parts):
        row += place == 2
        expected = cached.expected(text, q[row : row + end - start], start, window)
        torch.testing.assert_close(found[row : row + end - start], expected, atol=1e-5, rtol=1e-5)
        row += end - start


def test_keys_tell_prefixes_and_roots_apart() -> None:
    text = tokens(70)
    one = prefix_keys(b"a", text, 32)
    assert len(one) == 2
    assert prefix_keys(b"a", text[:64], 32) == one
    assert prefix_keys(one[0], text[32:], 32) == one[1:]
    changed = text.copy()
    changed[3] += 1
    assert not set(prefix_keys(b"a", changed, 32)) & set(one)
    assert not set(prefix_keys(b"b", text, 32)) & set(one)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 10)), max_size=60))
def test_no_block_has_two_owners_who_do_not_know_of_each_other(moves) -> None:
    pool = BlockPool(6, first=3)
    held: list[list[int]] = []
    owners: dict[int, int] = {}
    for move, number in moves:
        if move == 0 and (taken := pool.take(number % 4)) is not None:
            assert not any(block in owners for block in taken)
            held.append(taken)
            owners |= dict.fromkeys(taken, 1)
        elif move == 1 and held:
            given = held.pop(number % len(held))
            pool.release(given)
            for block in given:
                owners[block] -= 1
            owners = {block: count for block, count in owners.items() if count}
        elif move == 2 and held and held[number % len(held)]:
            pool.remember(held[number % len(held)][0], bytes([number]))
        elif move == 3:
            found = pool.find([bytes([number])])
            pool.share(found)
            held.append(found)
            for block in found:
                owners[block] = owners.get(block, 0) + 1
        assert pool.num_owned == len(owners)
        assert pool.num_available == 6 - len(owners)
    for given in held:
        pool.release(given)
    assert sorted(pool.take(6) or []) == [3, 4, 5, 6, 7, 8]


def test_idle_blocks_are_found_until_their_room_is_needed() -> None:
    pool = BlockPool(3)
    blocks = pool.take(2)
    for block, key in zip(blocks, (b"1", b"2"), strict=True):
        pool.remember(block, key)
    pool.release(blocks)
    assert pool.find([b"1", b"2", b"3"]) == blocks
    assert len(pool.take(2)) == 2  # the free one, and the later of the two
    assert pool.find([b"1", b"2"]) == blocks[:1]


both_ways = pytest.mark.usefixtures("with_and_without_kernels")


def _greedy(name: str, prompt: np.ndarray, **fields):
    defaults = {"max_tokens": 6, "temperature": 0.0, "stop": []}
    return sample_request(name, tokens=prompt, **{**defaults, **fields})


@both_ways
def test_beginnings_seen_before_are_not_computed_again(engine) -> None:
    system, one, other = tokens(70), tokens(20, 1), tokens(25, 2)
    first = run_samples(engine, _greedy("a", np.concatenate([system, one])))["a"]
    assert first.prompt_cache_hit_tokens == 0
    prompt = np.concatenate([system, other])
    again = run_samples(engine, _greedy("b", prompt))["b"]
    assert again.prompt_cache_hit_tokens == 64
    fresh = run_samples(engine, _greedy("b", prompt, cache_scope="another tenant"))["b"]
    assert fresh.prompt_cache_hit_tokens == 0
    np.testing.assert_array_equal(again.sequences[0].tokens, fresh.sequences[0].tokens)
    np.testing.assert_allclose(again.sequences[0].logprobs, fresh.sequences[0].logprobs, atol=1e-5)


@both_ways
def test_the_next_turn_of_a_conversation_finds_the_last_one(engine) -> None:
    turn = run_samples(engine, _greedy("a", tokens(80), max_tokens=60))["a"].sequences[0].tokens
    prompt = np.concatenate([tokens(80), turn, tokens(5, 1)])
    assert run_samples(engine, _greedy("b", prompt))["b"].prompt_cache_hit_tokens == 128


@both_ways
def test_beginnings_are_never_shared_between_adapters(engine) -> None:
    for name in ("one", "other"):
        engine.create_adapter(name, "tiny", LoraSpec(rank=4, seed=len(name)))
        warm_up(engine, name)
        engine.snapshot(name, name)
    alone = {
        sampler: run_samples(engine, _greedy("x", tokens(80), sampler_id=sampler))["x"]
        for sampler in (None, "one", "other")
    }
    assert all(result.prompt_cache_hit_tokens == 0 for result in alone.values())
    for sampler, result in alone.items():
        again = run_samples(engine, _greedy("x", tokens(80), sampler_id=sampler))["x"]
        assert again.prompt_cache_hit_tokens == 64
        np.testing.assert_array_equal(again.sequences[0].tokens, result.sequences[0].tokens)
        np.testing.assert_allclose(
            again.sequences[0].logprobs, result.sequences[0].logprobs, atol=1e-5
        )


@both_ways
def test_prompts_that_come_together_share_their_beginning_too(engine) -> None:
    system = tokens(64)
    requests = [_greedy(f"r{i}", np.concatenate([system, tokens(9, i)])) for i in range(5)]
    hits = [each.prompt_cache_hit_tokens for each in run_samples(engine, *requests).values()]
    assert sorted(hits) == [0, 64, 64, 64, 64]


@both_ways
def test_requested_scores_are_computed_despite_the_cache(engine) -> None:
    prompt = tokens(80)
    run_samples(engine, _greedy("warm", prompt))
    scored = run_samples(engine, _greedy("s", prompt, prompt_logprobs=True))["s"]
    assert scored.prompt_cache_hit_tokens == 0
    last = _greedy("l", prompt, prompt_logprobs=True, prompt_logprobs_last_n=10)
    some = run_samples(engine, last)["l"]
    assert some.prompt_cache_hit_tokens == 64
    assert np.isnan(some.prompt_logprobs[:70]).all()
    np.testing.assert_allclose(some.prompt_logprobs[70:], scored.prompt_logprobs[70:], atol=1e-5)


@both_ways
def test_deterministic_engines_compute_every_prompt_anew(tiny) -> None:
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, deterministic=True))
    for _ in range(2):
        assert run_samples(engine, _greedy("a", tokens(80)))["a"].prompt_cache_hit_tokens == 0


@both_ways
def test_samples_of_a_prompt_share_its_blocks(tiny) -> None:
    # 16 samples of 100 + 20 tokens: a block for all and one for each; alone each would need two.
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, cache_tokens=BLOCK_TOKENS * 17))
    fields = {"num_samples": 16, "max_tokens": 20, "seed": 3, "stop": []}
    engine.submit_sample(sample_request(tokens=tokens(100), **fields))
    assert engine.step_sampling(0.0).running == 16
    found = run_samples(engine)["r"].sequences
    roomy = TorchEngine(EngineOptions(models={"tiny": str(tiny)}))
    for i, sequence in enumerate(found):
        one = {**fields, "num_samples": i + 1}
        if i % 5 == 0:
            expected = run_samples(roomy, sample_request(tokens=tokens(100), **one))["r"]
            np.testing.assert_array_equal(sequence.tokens, expected.sequences[i].tokens)


@both_ways
def test_long_prompts_are_computed_in_parts_beside_what_is_written(tiny) -> None:
    options = {"prefill_tokens": 128, "prefill_tokens_beside": 64}
    engine = TorchEngine(EngineOptions(models={"tiny": str(tiny)}, **options))
    fields = {"prompt_logprobs": True, "topk_prompt_logprobs": 2, "max_tokens": 4, "seed": 1}
    long = sample_request("long", tokens=tokens(300), stop=[], **fields)
    score = sample_request("score", tokens=tokens(210), **{**fields, "max_tokens": 1})
    engine.submit_sample(sample_request("short", max_tokens=100, seed=1, stop=[]))
    engine.step_sampling(0.0)
    engine.submit_sample(long)
    engine.submit_sample(score)
    steps, found = 0, {}
    while (progress := engine.step_sampling(0.0)).running:
        steps += progress.waiting > 0
        found |= {result.request_id: result for result in progress.finished}
    assert steps >= 7  # 510 tokens, 64 at a time
    whole = TorchEngine(EngineOptions(models={"tiny": str(tiny)}))
    for request in (long, score):
        expected = run_samples(whole, request)[request.request_id]
        result = found[request.request_id]
        np.testing.assert_array_equal(result.sequences[0].tokens, expected.sequences[0].tokens)
        np.testing.assert_allclose(
            result.prompt_logprobs[1:], expected.prompt_logprobs[1:], atol=1e-5
        )
        np.testing.assert_allclose(
            result.topk_prompt.logprobs, expected.topk_prompt.logprobs, atol=1e-5
        )


@both_ways
def test_many_adapters_in_one_batch_are_as_good_as_alone(engine) -> None:
    ranks = [4, 4, 4, 8, 4]
    for i, rank in enumerate(ranks):
        engine.create_adapter(f"a{i}", "tiny", LoraSpec(rank=rank, seed=i, train_unembed=i != 4))
        warm_up(engine, f"a{i}")
        engine.snapshot(f"a{i}", f"s{i}")

    def request(i: int, copy: int):
        sampler = f"s{i}" if i < len(ranks) else None
        prompt = tokens(10 + copy, seed=i)
        return _greedy(f"{i}.{copy}", prompt, sampler_id=sampler, max_tokens=12)

    requests = [request(i, copy) for copy in range(3) for i in range(len(ranks) + 1)]
    requests.append(request(0, 3))  # one adapter has more rows than the others
    together = run_samples(engine, *requests)
    for each in requests:
        alone = run_samples(engine, each)[each.request_id].sequences[0]
        found = together[each.request_id].sequences[0]
        np.testing.assert_array_equal(found.tokens, alone.tokens)
        np.testing.assert_allclose(found.logprobs, alone.logprobs, atol=1e-4)
