"""The engine's time between tenants, models and kinds of work, on a simulated clock.

Random mixes: tenants that train now and then with one or more models, in bursts or with two steps
in flight, beside sampling that comes and goes. No operation waits longer than its fair share and
one batch, however long others had the engine to themselves before.
"""

from __future__ import annotations

import random
from collections import Counter, deque

import msgspec
import pytest

from tests.scheduler.work import operation
from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.planner import BatchLimits, Computed, Planner
from tinkex.scheduler.queues.time_shares import TimeShares
from tinkex.store.operations import Operation

SLICE_S = 0.05


class Burst(msgspec.Struct):
    """Operations of one model, sent from `at` on, with so many in flight."""

    at: float
    model_id: str
    owner: str
    operations: deque[tuple[str, int]]  # kind and tokens
    in_flight: int


class World:
    """A planner, an engine whose work takes simulated time, and what each operation waited."""

    def __init__(self, dice: random.Random) -> None:
        self.clock = 0.0
        self.planner = Planner(BatchLimits())
        self.shares = TimeShares()
        self.per_pass, self.per_token = dice.uniform(0.001, 0.3), 10 ** dice.uniform(-5, -3)
        self.noise = lambda: dice.uniform(0.7, 1.3)
        self.bursts: list[Burst] = []
        self.active: list[Burst] = []
        self.sampling: list[tuple[float, float]] = []  # from when on, and how many seconds
        self.next_seq: Counter[str] = Counter()
        self.arrived: dict[str, float] = {}
        self.alone_s: dict[str, float] = {}
        self.waits: list[tuple[Operation, float]] = []
        self.longest_batch_s = SLICE_S
        self.pauses: list[float] = []  # of sampling while it had work

    def run(self) -> None:
        """Until all is done."""
        sampled_at = None
        while self.bursts or self.active or self.sampling:
            self._arrive()
            can_sample = bool(self.sampling) and self.sampling[0][0] <= self.clock
            if not can_sample:
                sampled_at = None
            elif sampled_at is None:
                sampled_at = self.clock
            kind = self.shares.next(can_train=self.planner.has_ready(), can_sample=can_sample)
            if kind is None:
                self._sleep()
            elif kind == "train":
                self._train()
            else:
                assert sampled_at is not None
                self.pauses.append(self.clock - sampled_at)
                self._sample()
                sampled_at = self.clock

    def _arrive(self) -> None:
        for burst in [each for each in self.bursts if each.at <= self.clock]:
            self.bursts.remove(burst)
            self.active.append(burst)
            for _ in range(burst.in_flight):
                self._send(burst)

    def _send(self, burst: Burst) -> None:
        if not burst.operations:
            return
        kind, cost = burst.operations.popleft()
        seq_id = self.next_seq[burst.model_id]
        self.next_seq[burst.model_id] += 1
        sent = operation(burst.model_id, seq_id, kind=kind, cost=cost, owner=burst.owner)
        self.planner.open(ModelQueue(burst.model_id, burst.owner, "base"))
        self.planner.add(sent, self.clock)
        self.arrived[sent.request_id] = self.clock
        self.alone_s[sent.request_id] = self._true_s([sent])

    def _train(self) -> None:
        batch = self.planner.next_batch(self.clock)
        seconds = self._true_s(batch) * self.noise()
        self.longest_batch_s = max(self.longest_batch_s, seconds)
        self.clock += seconds
        self.planner.finished(batch, [Computed(operations=batch, busy_seconds=seconds)])
        self.shares.spent("train", seconds)
        for each in batch:
            self.waits.append((each, self.clock - self.arrived[each.request_id]))
            self._send(next(burst for burst in self.active if burst.model_id == each.model_id))
        self.active = [burst for burst in self.active if self._is_unfinished(burst)]

    def _is_unfinished(self, burst: Burst) -> bool:
        queue = self.planner.queue(burst.model_id)
        return bool(burst.operations) or (queue is not None and len(queue) > 0)

    def _true_s(self, batch: list[Operation]) -> float:
        passes = max(Counter(each.model_id for each in batch).values())
        tokens = sum(each.cost for each in batch if each.kind != "optim_step")
        return passes * self.per_pass + tokens * self.per_token

    def _sample(self) -> None:
        since, left_s = self.sampling[0]
        used_s = min(left_s, SLICE_S)
        self.clock += used_s
        self.shares.spent("sample", used_s)
        self.sampling[0] = (since, left_s - used_s)
        if left_s <= SLICE_S:
            self.sampling.pop(0)

    def _sleep(self) -> None:
        starts = [each.at for each in self.bursts] + [since for since, _ in self.sampling[:1]]
        self.clock = max(self.clock, min(starts))


def a_world(seed: int) -> World:
    dice = random.Random(seed)
    world = World(dice)
    for number in range(dice.randint(2, 5)):
        for model in range(dice.randint(1, 3)):
            size = 10 ** dice.uniform(1, 3.5)
            steps = dice.randint(1, 40)
            kinds = ["forward_backward"] * dice.randint(1, 3) + ["optim_step"] * dice.randint(0, 1)
            work = [(kind, max(1, int(size * dice.uniform(0.5, 2)))) for kind in kinds * steps]
            world.bursts.append(
                Burst(
                    at=dice.choice([0.0, dice.uniform(0, 400)]),
                    model_id=f"t{number}-{model}",
                    owner=f"t{number}",
                    operations=deque(work),
                    in_flight=dice.choice([1, 2, len(work)]),
                )
            )
    at = 0.0
    for _ in range(dice.randint(0, 6)):
        at += dice.uniform(1, 150)
        world.sampling.append((at, 10 ** dice.uniform(-1, 2)))
    return world


@pytest.mark.parametrize("seed", range(60))
def test_no_operation_waits_longer_than_its_fair_share_and_a_batch(seed: int) -> None:
    world = a_world(seed)
    num_tenants = len({each.owner for each in world.bursts})
    num_models = max(Counter(each.owner for each in world.bursts).values())
    queued = {each.model_id: each.in_flight for each in world.bursts}
    world.run()
    own_s = {  # of the tenant's largest operation: what it is charged for, and others catch up on
        each.owner: max(
            world.alone_s[o.request_id] for o, _ in world.waits if o.owner == each.owner
        )
        for each, _ in world.waits
    }
    for each, waited_s in world.waits:
        # Others get as much as it does, and sampling as much as all training.
        share_s = 2 * num_tenants * num_models * queued[each.model_id] * 1.3 * own_s[each.owner]
        assert waited_s <= share_s + 4 * world.longest_batch_s, (each.request_id, waited_s)
    # Sampling waits for as long as one batch takes, plus the time it was ahead by.
    assert max(world.pauses, default=0.0) <= 2 * world.longest_batch_s + SLICE_S


@pytest.mark.parametrize("num_runs", [1, 8, 16, 64])
@pytest.mark.parametrize("seed", range(5))
def test_a_loop_beside_a_tenant_with_many_runs_waits_for_a_batch(num_runs: int, seed: int) -> None:
    """Passes that many runs share cost each of them little, and that is what they are charged."""
    world = World(random.Random(seed))
    for number in range(num_runs):
        passes = deque([("forward_backward", 100)] * 60)
        world.bursts.append(Burst(0.0, f"many-{number}", "many", passes, in_flight=2))
    steps = deque([("forward_backward", 100), ("optim_step", 1)] * 10)
    world.bursts.append(Burst(1.0, "loop", "one", steps, in_flight=1))
    world.run()
    own_s = 1.3 * max(world.alone_s[f"loop-{number}"] for number in range(20))
    waits = [waited_s for each, waited_s in world.waits if each.owner == "one"]
    assert max(waits) <= 2 * own_s + 2 * world.longest_batch_s


def test_an_hour_of_training_alone_gives_sampling_no_claim_to_an_hour() -> None:
    shares = TimeShares()
    for _ in range(3600):
        assert shares.next(can_train=True, can_sample=False) == "train"
        shares.spent("train", 1.0)
    used_s: Counter[str] = Counter()
    for _ in range(200):
        kind = shares.next(can_train=True, can_sample=True)
        assert kind is not None
        shares.spent(kind, 1.0 if kind == "train" else 0.05)
        used_s[kind] += 1.0 if kind == "train" else 0.05
        assert abs(used_s["train"] - used_s["sample"]) <= 2.0


def test_a_loop_with_short_pauses_gets_no_more_than_half() -> None:
    """Training that has no work for a moment after each step does not start level each time."""
    shares = TimeShares()
    used_s: Counter[str] = Counter()
    for _ in range(60):
        is_between_steps = used_s["train"] > used_s["sample"]
        kind = shares.next(can_train=not is_between_steps, can_sample=True)
        assert kind is not None
        seconds = 1.0 if kind == "train" else 0.05
        shares.spent(kind, seconds)
        used_s[kind] += seconds
    assert used_s["train"] <= used_s["sample"] + 1.0
