"""Steps of tenants with few rows between those of the whole batch.

The rule alone runs on a simulated clock, where a step costs what the test says. The last tests run
it in an engine whose clock counts the rows of the steps it takes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.engine.work import run_samples, sample_request, tokens
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.engine.interface import SampleRequest, SampleResult
from tinkex.engine.options import EngineOptions
from tinkex.engine.sampling.sampler import Sampler
from tinkex.engine.sampling.small_steps import MAX_RELATIVE_COST, SMALL_SHARE, SmallSteps
from tinkex.engine.sampling.step_costs import StepCosts
from tinkex.engine.torch_engine import TorchEngine

Cost = Callable[[int], float]


class World:
    """An engine whose steps take simulated time, and who got what in which step."""

    def __init__(self, cost: Cost, rows: dict[str, int]) -> None:
        self.rule, self.cost, self.rows = SmallSteps(), cost, rows
        self.clock = self.small_s = self.whole_s = 0.0
        self.num_small = 0
        self.tokens: Counter[str] = Counter()  # written for each of a tenant's rows
        self.small_of: Counter[str] = Counter()  # seconds of small steps
        self.last: dict[str, float] = dict.fromkeys(rows, 0.0)
        self.longest_wait: Counter[str] = Counter()

    @property
    def whole_cost(self) -> float:
        return self.cost(sum(self.rows.values()))

    def step(self) -> bool:
        """Runs one step; whether it was a small one."""
        chosen = set(self.rule.choose(self.rows))
        rows = {tenant: self.rows[tenant] for tenant in chosen}
        num_rows, seconds = sum(rows.values()), self.cost(sum(rows.values()))
        is_whole = len(chosen) == len(self.rows)
        self.clock += seconds
        self.rule.record(rows, seconds, is_whole=is_whole)
        for tenant in chosen:
            self.tokens[tenant] += 1
            wait = self.clock - self.last[tenant]
            self.longest_wait[tenant] = max(self.longest_wait[tenant], wait)
            self.last[tenant] = self.clock
            if not is_whole:
                self.small_of[tenant] += seconds * rows[tenant] / num_rows
        if is_whole:
            self.whole_s += seconds
        else:
            self.num_small += 1
            self.small_s += seconds
        return not is_whole

    def learn(self) -> None:
        """Has the rule see a step of every size, as it does while work comes in."""
        for num_rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            self.rule.record({"any": num_rows}, self.cost(num_rows), is_whole=True)
        self.rule.record(self.rows, self.whole_cost, is_whole=True)

    def forget(self) -> None:
        """Starts counting anew."""
        self.last = dict.fromkeys(self.rows, self.clock)
        self.small_of.clear()
        self.tokens.clear()
        self.longest_wait.clear()
        self.small_s = self.whole_s = 0.0


def linear(fixed: float, per_row: float) -> Cost:
    """A machine on which every row takes its time."""
    return lambda num_rows: fixed + per_row * num_rows


def flat(num_rows: int) -> float:
    """A machine on which a step of many rows takes as long as one of few."""
    return 0.01


def random_world(dice: random.Random) -> World:
    per_row = 10 ** dice.uniform(-6, -2)
    few = {f"few-{n}": dice.randint(1, 4) for n in range(dice.randint(1, 4))}
    many = {f"many-{n}": dice.randint(60, 200) for n in range(dice.randint(1, 3))}
    world = World(linear(per_row * dice.uniform(0, 8), per_row), few | many)
    world.learn()
    return world


@pytest.mark.parametrize("seed", range(40))
def test_a_tenant_with_few_rows_waits_no_longer_than_stated(seed: int) -> None:
    world = random_world(random.Random(seed))
    for _ in range(random.Random(seed + 1).randint(0, 300)):
        world.step()
    world.forget()
    began = world.clock
    few = [tenant for tenant in world.rows if tenant.startswith("few")]
    small_s = world.cost(sum(world.rows[tenant] for tenant in few))
    assert small_s < MAX_RELATIVE_COST * world.whole_cost, "or this tests nothing"
    share = min(SMALL_SHARE, 1 / len(world.rows))
    for _ in range(2000):
        world.step()
        for tenant in few:
            num_tokens = world.tokens[tenant] + 1
            limit = num_tokens * small_s * (1 + SMALL_SHARE) / share + 2 * world.whole_cost
            assert world.last[tenant] - began <= limit, (seed, tenant, num_tokens)
    for tenant in few:
        num_whole = world.tokens["many-0"]
        assert world.tokens[tenant] > 1.5 * num_whole, "they get more than whole steps give"


@pytest.mark.parametrize("seed", range(40))
def test_no_tenant_starves_and_small_steps_stay_within_their_shares(seed: int) -> None:
    dice = random.Random(seed)
    world = random_world(dice)
    whole_s = world.whole_cost
    for _ in range(2000):
        if dice.random() < 0.02:  # one comes or goes
            name = f"few-{dice.randint(0, 5)}"
            if world.rows.pop(name, None) is None:
                world.rows[name] = dice.randint(1, 4)
                world.last[name] = world.clock
        world.step()
        whole_s = max(whole_s, world.whole_cost)
        assert world.small_s <= SMALL_SHARE * world.whole_s + 1.5 * whole_s, seed
    assert max(world.longest_wait.values()) <= 2.5 * whole_s, seed


@pytest.mark.parametrize("num_many", [1, 4, 9])
def test_no_tenant_has_more_than_its_fair_share(num_many: int) -> None:
    many = {f"many-{n}": 250 // num_many for n in range(num_many)}
    world = World(linear(0.0005, 0.00002), {"few": 1} | many)
    world.learn()
    began = world.clock
    for _ in range(5000):
        world.step()
    share = world.small_of["few"] / (world.clock - began)
    assert share <= 1 / len(world.rows) + 0.01
    assert share > 0.5 * min(1 / len(world.rows), SMALL_SHARE / (1 + SMALL_SHARE)), "and it is used"


def test_coming_anew_earns_nothing() -> None:
    stays = World(linear(0.0005, 0.00002), {"few": 1, "many": 255})
    returns = World(linear(0.0005, 0.00002), {"few": 1, "many": 255})
    for world in (stays, returns):
        world.learn()
        for number in range(4000):
            if world is returns and number % 8 == 0:
                del world.rows["few"]
                world.rule.choose(world.rows)
                world.rows["few"] = 1
            world.step()
    assert returns.small_s / returns.whole_s <= stays.small_s / stays.whole_s + 0.01


def test_where_rows_cost_nothing_every_step_is_whole() -> None:
    world = World(flat, {"few": 1, "many": 255})
    world.learn()
    for _ in range(20_000):
        world.step()
    # Small steps are tried after 64 whole ones, 128, and so on.
    assert world.num_small <= 12


def test_equal_tenants_share_every_step() -> None:
    world = World(linear(0.0005, 0.00002), dict.fromkeys("abcd", 64))
    world.learn()
    for _ in range(1000):
        assert not world.step()


def test_one_tenant_alone_has_whole_steps() -> None:
    world = World(linear(0.0005, 0.00002), {"one": 3})
    world.learn()
    for _ in range(100):
        assert not world.step()


def test_costs_of_a_cold_start_are_measured_again() -> None:
    """Small steps were slow when they were last seen, and heavy work has run ever since."""
    cost = linear(0.0005, 0.00002)
    world = World(cost, {"few": 1, "many": 255})
    world.rule.record({"few": 1}, 1.0, is_whole=True)
    world.rule.record({"many": 256}, cost(256), is_whole=True)
    for _ in range(200):
        world.step()
    assert world.num_small > 100


def test_costs_are_the_fastest_of_the_last_steps_of_a_size() -> None:
    costs = StepCosts()
    assert (costs.at_most(4), costs.at_least(4)) == (float("inf"), 0.0)
    for seconds in (0.5, 0.2, 0.4):
        costs.record(20, seconds)
    costs.record(300, 3.0)
    assert (costs.at_most(17), costs.at_most(3), costs.at_most(33)) == (0.2, 0.2, 3.0)
    assert (costs.at_least(256), costs.at_least(400), costs.at_least(9)) == (0.2, 3.0, 0.0)
    for _ in range(8):
        costs.record(20, 0.6)
    assert costs.at_most(20) == 0.6, "what is long ago does not count"


class RowClock:
    """A clock that moves only when the model runs, by a millisecond a row."""

    def __init__(self, sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        run = sampler._runner.run

        def timed(sequences, parts):
            self._now += 0.001 * (len(sequences) + sum(each.end - each.start for each in parts))
            return run(sequences, parts)

        monkeypatch.setattr(sampler, "_clock", lambda: self._now)
        monkeypatch.setattr(sampler._runner, "run", timed)


@pytest.fixture(scope="module")
def long_context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "long"
    return make_tiny_model(folder, "smollm", max_position_embeddings=8192)


@pytest.fixture(params=["kernels", "torch"])
def make(request: pytest.FixtureRequest, long_context: Path) -> Callable[[], TorchEngine]:
    return lambda: TorchEngine(
        EngineOptions(
            models={"tiny": str(long_context)},
            memory_bytes=2**30,
            kernels=request.param == "kernels",
        )
    )


def _light(number: int) -> SampleRequest:
    prompt = tokens(5 + 30 * number, number)
    params = {"max_tokens": 20, "stop": [], "seed": number, "cache_scope": "light"}
    return sample_request(f"light-{number}", tokens=prompt, **params)


def _heavy(number: int, length: int = 90) -> SampleRequest:
    params = {"max_tokens": length, "stop": [], "seed": number, "cache_scope": "heavy"}
    return sample_request(f"heavy-{number}", tokens=tokens(9, number), **params)


def _assert_same_bits(alone: SampleResult, beside: SampleResult) -> None:
    for one, other in zip(alone.sequences, beside.sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_answers_beside_a_neighbour_are_those_alone_bit_for_bit(
    make: Callable[[], TorchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    heavy, light = [_heavy(n) for n in range(40)], [_light(n) for n in range(4)]
    alone = run_samples(make(), *heavy) | run_samples(make(), *light)
    engine = make()
    sampler = engine._base("tiny").sampler
    RowClock(sampler, monkeypatch)
    small = _count_small_steps(sampler, monkeypatch)
    beside = run_samples(engine, *heavy, *light)
    assert small["light"] > 15, "or this tests nothing"
    assert small["heavy"] == 0
    assert beside.keys() == alone.keys()
    for name, expected in alone.items():
        _assert_same_bits(expected, beside[name])


def test_a_newcomer_is_done_before_its_neighbours_have_written_a_few_tokens(
    make: Callable[[], TorchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    sampler = engine._base("tiny").sampler
    RowClock(sampler, monkeypatch)
    for number in range(200):
        engine.submit_sample(_heavy(number, 400))
    run_until(engine, lambda: sampler.num_running == 200)
    for _ in range(10):
        engine.step_sampling(0.0)
    before = _most_written(sampler)
    new = sample_request("new", tokens=tokens(16), max_tokens=8, stop=[], cache_scope="light")
    engine.submit_sample(new)
    run_until(engine, lambda: sampler.num_running == 200 and not sampler.num_waiting)
    assert _most_written(sampler) - before <= 1, "eight tokens within one step of the others"


def test_prompts_that_wait_for_seats_make_no_tenant_one_with_few(
    make: Callable[[], TorchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tenants share all seats; the prompts of one that have none yet are no work of a step."""
    engine = make()
    sampler = engine._base("tiny").sampler
    RowClock(sampler, monkeypatch)
    for number in range(256):
        engine.submit_sample(_heavy(number, 400))
    run_until(engine, lambda: sampler.num_running == 256)
    for number in range(200):
        params = {"max_tokens": 400, "stop": [], "cache_scope": "other"}
        engine.submit_sample(sample_request(f"o-{number}", tokens=tokens(90, number), **params))
    for _ in range(100):  # until the seats are shared
        engine.step_sampling(0.0)
    held = Counter(each.job.scope for each in sampler._seating.running)
    assert held == {"heavy": 128, "other": 128}
    assert sampler._wanted_rows() == held
    small = _count_small_steps(sampler, monkeypatch)
    for _ in range(20):
        engine.step_sampling(0.0)
    assert not small


def run_until(engine: TorchEngine, is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        engine.step_sampling(0.0)
        if is_so():
            return
    raise AssertionError("it never comes about")


def _most_written(sampler: Sampler) -> int:
    return max(len(each.tokens) for each in sampler._seating.running)


def _count_small_steps(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Small steps by tenant, from now on."""
    count: Counter[str] = Counter()
    record = sampler._small_steps.record

    def counted(rows, seconds: float, *, is_whole: bool) -> None:
        count.update(() if is_whole else list(rows))
        record(rows, seconds, is_whole=is_whole)

    monkeypatch.setattr(sampler._small_steps, "record", counted)
    return count
