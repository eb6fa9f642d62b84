"""Running sequences are shared out: between tenants, and between the requests of one.

Steps are counted, never seconds: `step_sampling(0.0)` is one step. The sampler's clock stands
still, so which rows share a step does not depend on how busy the machine is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers

from tests.engine.work import run_samples, sample_request, tokens
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.engine.interface import SampleRequest, SampleResult
from tinkex.engine.options import EngineOptions
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS
from tinkex.engine.sampling.sampler import Sampler, SamplerLimits
from tinkex.engine.sampling.seat_shares import QUANTUM
from tinkex.engine.torch_engine import TorchEngine

Make = Callable[..., TorchEngine]


@pytest.fixture(scope="module")
def long_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "long"
    return make_tiny_model(folder, "smollm", max_position_embeddings=8192)


@pytest.fixture
def make(long_context: Path) -> Make:
    def engine(**options) -> TorchEngine:
        made = TorchEngine(
            EngineOptions(models={"tiny": str(long_context)}, memory_bytes=2**30, **options)
        )
        sampler_of(made)._clock = lambda: 0.0  # every step is one of the whole batch
        return made

    return engine


@pytest.fixture(params=["kernels", "torch", "uncached"])
def make_any(
    request: pytest.FixtureRequest, make: Make, tmp_path_factory: pytest.TempPathFactory
) -> Make:
    """Engines of every runner: compiled kernels, PyTorch's operations, and no cache at all."""
    if request.param != "uncached":
        return lambda **options: make(kernels=request.param == "kernels", **options)
    folder = tmp_path_factory.mktemp("models") / "gpt2"
    config = transformers.GPT2Config(
        n_embd=24, n_layer=2, n_head=3, n_positions=128, vocab_size=272, eos_token_id=258
    )
    transformers.set_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)

    def engine(cache_tokens: int | None = None, **options) -> TorchEngine:
        return TorchEngine(EngineOptions(models={"tiny": str(folder)}, **options))

    return engine


def sampler_of(engine: TorchEngine) -> Sampler:
    return engine._base("tiny").sampler


def endless(name: str, owner: str, **fields) -> SampleRequest:
    defaults = {"max_tokens": 8000, "stop": [], "seed": 1, "cache_scope": owner}
    return sample_request(name, **{**defaults, **fields})


def steps_until_done(engine: TorchEngine, name: str, most: int) -> int:
    for step in range(1, most + 1):
        if any(each.request_id == name for each in engine.step_sampling(0.0).finished):
            return step
    raise AssertionError(f"{name!r} is not done after {most} steps")


def fill(engine: TorchEngine, greedy: str) -> None:
    """Occupies every seat, and then some."""
    if greedy == "257 samples of one request":
        engine.submit_sample(endless("greedy", "a", num_samples=257))
        num_steps = 5
    else:
        for number in range(300):
            engine.submit_sample(endless(f"greedy-{number}", "a", seed=number, max_tokens=2000))
        num_steps = 30
    for _ in range(num_steps):
        engine.step_sampling(0.0)


GREEDY = ["257 samples of one request", "300 requests"]


@pytest.mark.parametrize("greedy", GREEDY)
def test_another_tenants_sample_starts_at_once(make: Make, greedy: str) -> None:
    engine = make()
    fill(engine, greedy)
    engine.submit_sample(sample_request("new", tokens=tokens(40), max_tokens=4, cache_scope="b"))
    assert steps_until_done(engine, "new", 20) <= 4 + 2, "four tokens, begun within two steps"
    running = sampler_of(engine).num_running
    assert running >= 255, "the others go on meanwhile"


def test_a_short_sample_does_not_wait_for_its_own_tenants_samples(make: Make) -> None:
    engine = make()
    fill(engine, GREEDY[0])
    engine.submit_sample(sample_request("new", tokens=tokens(40), max_tokens=4, cache_scope="a"))
    assert steps_until_done(engine, "new", 20) <= 4 + 2


def test_a_short_sample_waits_a_quantum_for_its_own_tenants_requests(make: Make) -> None:
    engine = make()
    fill(engine, GREEDY[1])
    engine.submit_sample(sample_request("new", tokens=tokens(40), max_tokens=4, cache_scope="a"))
    assert steps_until_done(engine, "new", 200) <= 4 + 2 * QUANTUM


def num_parts_beside(limits: SamplerLimits, length: int) -> int:
    """How many parts a prompt is computed in beside running sequences."""
    start = count = 0
    while start < length:
        num_tokens = int(limits.beside_tokens / limits.token_cost(start))
        start += max(1, num_tokens // BLOCK_TOKENS) * BLOCK_TOKENS
        count += 1
    return count


@pytest.mark.parametrize("owner", ["a", "b"])
def test_a_newcomer_gets_blocks_of_a_full_cache(make: Make, owner: str) -> None:
    """One request has every block of the cache, as 257 long answers of a real model do."""
    engine = make(cache_tokens=BLOCK_TOKENS * 260)
    engine.submit_sample(endless("greedy", "a", num_samples=256))
    pool = sampler_of(engine)._pool
    for _ in range(150):
        engine.step_sampling(0.0)
    assert pool.num_available < 130, "nearly all blocks are taken"
    prompt = tokens(BLOCK_TOKENS * 100)
    engine.submit_sample(sample_request("new", tokens=prompt, max_tokens=4, cache_scope=owner))
    num_parts = num_parts_beside(sampler_of(engine)._limits, len(prompt))
    # Sequences of its own tenant that lost their blocks meanwhile are due before it.
    num_others = num_parts // 2 if owner == "a" else 0
    assert steps_until_done(engine, "new", 150) <= num_parts + num_others + 4 + 2


def test_prompts_sent_back_for_lack_of_room_do_not_hold_up_another_tenant(make: Make) -> None:
    engine = make(cache_tokens=BLOCK_TOKENS * 140, max_sequences=64)
    engine.submit_sample(endless("greedy", "a", num_samples=64))
    for _ in range(200):
        engine.step_sampling(0.0)
    assert sampler_of(engine).num_waiting > 10, "many have lost their blocks"
    engine.submit_sample(sample_request("new", tokens=tokens(40), max_tokens=4, cache_scope="b"))
    assert steps_until_done(engine, "new", 50) <= 4 + 2


def written(sampler: Sampler) -> Counter[str]:
    """Tokens of answers so far, by tenant, of requests that are not done."""
    count: Counter[str] = Counter()
    for sequence in sampler._seating.sequences():
        count[sequence.job.request.cache_scope] += len(sequence.tokens)
    return count


@pytest.mark.parametrize("seed", range(8))
def test_tenants_write_equally_much(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    owners = "abcd"[: rng.randint(2, 4)]
    seats = rng.randint(len(owners), 40)
    engine = make(max_sequences=seats)
    for owner in rng.sample(owners, len(owners)):
        left, number = 2 * seats, 0  # enough for all seats, however it is split
        while left > 0:
            count = rng.choice([1, 1, 2, 7, left])
            name = f"{owner}-{number}"
            prompt = tokens(rng.randint(1, 90), number)
            engine.submit_sample(endless(name, owner, tokens=prompt, num_samples=count))
            left, number = left - count, number + 1
        for _ in range(rng.randint(0, 60)):
            engine.step_sampling(0.0)
    for _ in range(60):  # until every prompt was computed
        engine.step_sampling(0.0)
    sampler = sampler_of(engine)
    before = written(sampler)
    for _ in range(100):
        engine.step_sampling(0.0)
        got = written(sampler)
        got.subtract(before)
        served = [got[owner] for owner in owners]
        # One is ahead by a quantum and a step at most: at the beginning of the span and at its
        # end, which is the 34 tokens that the page on reliability promises.
        assert max(served) - min(served) <= 2 * (QUANTUM + 1), (seed, seats, got)


@pytest.mark.parametrize("seed", range(6))
def test_requests_of_a_tenant_write_equally_much(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    seats, count = rng.randint(2, 12), rng.randint(13, 20)
    engine = make(max_sequences=seats)
    for number in range(count):
        engine.submit_sample(endless(f"r{number}", "a", tokens=tokens(rng.randint(1, 50), number)))
    for _ in range(400):
        engine.step_sampling(0.0)
    lengths = [len(each.tokens) for each in sampler_of(engine)._seating.sequences()]
    assert len(lengths) == count
    assert max(lengths) - min(lengths) <= 2 * QUANTUM, (seed, seats, lengths)


def test_time_without_work_earns_no_claim(make: Make) -> None:
    engine = make(max_sequences=8)
    engine.submit_sample(endless("long", "a", num_samples=20))
    engine.submit_sample(endless("one", "b", num_samples=1))
    for _ in range(200):  # the second tenant asks for less than its share all the time
        engine.step_sampling(0.0)
    engine.submit_sample(endless("more", "b", num_samples=20))
    for _ in range(10):
        engine.step_sampling(0.0)
    sampler, before = sampler_of(engine), written(sampler_of(engine))
    for _ in range(50):
        engine.step_sampling(0.0)
    got = written(sampler)
    got.subtract(before)
    assert abs(got["a"] - got["b"]) <= QUANTUM + 1, got


def test_a_request_alone_is_never_preempted(make: Make) -> None:
    engine = make(max_sequences=8)
    engine.submit_sample(endless("alone", "a", num_samples=20))
    first: set[int] = set()
    for _ in range(100):
        engine.step_sampling(0.0)
        running = {each.index for each in sampler_of(engine)._seating.running}
        first = first or running
        assert running == first


def assert_same(expected: SampleResult, found: SampleResult) -> None:
    for one, other in zip(expected.sequences, found.sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.parametrize("cache_blocks", [400, 24])
def test_preempted_sequences_are_those_of_an_undisturbed_run(
    make_any: Make, cache_blocks: int
) -> None:
    """With room for all their blocks they are parked; without it they are computed anew."""
    if cache_blocks == 24 and sampler_of(make_any())._pool is None:
        pytest.skip("there is no cache")
    requests = [
        endless(
            f"{owner}-{number}",
            owner,
            tokens=tokens(5 + 11 * number, ord(owner)),
            num_samples=2 * number + 1,
            max_tokens=66 - 5 * number,
            seed=number,
        )
        for owner in "abc"
        for number in range(4)
    ]
    roomy, alone = make_any(), dict[str, SampleResult]()
    for request in requests:
        alone |= run_samples(roomy, request)
    engine = make_any(max_sequences=7, cache_tokens=BLOCK_TOKENS * cache_blocks)
    crowded: dict[str, SampleResult] = {}
    for request in requests:  # each comes when the others run
        engine.submit_sample(request)
        for _ in range(4):
            crowded |= {each.request_id: each for each in engine.step_sampling(0.0).finished}
    num_parked = sampler_of(engine).num_parked
    crowded |= run_samples(engine)
    assert num_parked > 0, "or this tests nothing"
    assert crowded.keys() == alone.keys()
    for name, expected in alone.items():
        assert_same(expected, crowded[name])
    if (pool := sampler_of(engine)._pool) is not None:
        assert pool.num_owned == 0


def crowd(engine: TorchEngine) -> Sampler:
    """A sampler where sequences of a request are parked for another tenant's."""
    engine.submit_sample(endless("parked", "a", num_samples=8, max_tokens=600))
    for _ in range(5):
        engine.step_sampling(0.0)
    engine.submit_sample(endless("new", "b", num_samples=8, max_tokens=600))
    for _ in range(5):
        engine.step_sampling(0.0)
    sampler = sampler_of(engine)
    assert sampler.num_parked > 0
    return sampler


def test_a_parked_sequence_keeps_its_blocks_and_resumes_at_no_cost(make: Make) -> None:
    engine = make(max_sequences=8)
    sampler = crowd(engine)
    parked = [each for each in sampler._seating.sequences() if each not in sampler._seating.running]
    assert all(each.blocks for each in parked if each.job.request.request_id == "parked")
    engine.cancel_sample("new")
    engine.step_sampling(0.0)
    assert sampler.num_running == 8
    assert sampler.num_waiting == 0, "nothing has to be computed again"


def test_cancelling_frees_the_blocks_of_parked_sequences(make: Make) -> None:
    engine = make(max_sequences=8)
    sampler = crowd(engine)
    engine.cancel_sample("parked")
    engine.step_sampling(0.0)
    assert {each.job.request.request_id for each in sampler._seating.sequences()} == {"new"}
    engine.cancel_sample("new")
    engine.step_sampling(0.0)
    assert sampler._pool.num_owned == 0
    assert engine.step_sampling(0.0).waiting == 0


def test_a_failed_step_forgets_parked_sequences_too(make: Make) -> None:
    engine = make(max_sequences=8)
    sampler = crowd(engine)
    assert sorted(sampler.drop_all()) == ["new", "parked"]
    assert sampler._pool.num_owned == 0
    assert (sampler.num_running, sampler.num_waiting, sampler.num_parked) == (0, 0, 0)


def test_blocks_of_parked_sequences_are_taken_back_oldest_first(make: Make) -> None:
    engine = make(max_sequences=8, cache_tokens=BLOCK_TOKENS * 20)
    sampler = crowd(engine)
    parked = sampler._seating.parked
    while len(now := sampler._seating.parked) == len(parked):
        engine.step_sampling(0.0)
    assert now == parked[len(parked) - len(now) :]


@pytest.mark.parametrize("seed", range(4))
def test_every_request_of_a_random_mix_ends_and_gives_its_blocks_back(
    make_any: Make, seed: int
) -> None:
    rng = random.Random(seed)
    blocks = rng.choice([6, 12, 40])
    engine = make_any(max_sequences=rng.randint(1, 9), cache_tokens=BLOCK_TOKENS * blocks)
    requests = [
        endless(
            f"r{number}",
            rng.choice("aaab c"),
            tokens=tokens(rng.randint(1, 60), number % 5),
            num_samples=rng.choice([1, 1, 2, 9]),
            max_tokens=rng.choice([1, 2, 9, 40]),
            seed=number,
        )
        for number in range(24)
    ]
    gone = {each.request_id for each in rng.sample(requests, 3)}
    done: dict[str, SampleResult] = {}
    for request in requests:
        engine.submit_sample(request)
        for _ in range(rng.randint(0, 8)):
            done |= {each.request_id: each for each in engine.step_sampling(0.0).finished}
        if request.request_id in gone:
            engine.cancel_sample(request.request_id)
    done |= run_samples(engine)
    assert {each.request_id for each in requests} - gone <= done.keys(), seed
    if (pool := sampler_of(engine)._pool) is not None:
        assert pool.num_owned == 0
