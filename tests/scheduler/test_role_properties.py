"""Roles, placement and fairness together, on a simulated clock and in random orders of events."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.queues.test_sample_queue import Clock, waiting
from tests.scheduler.slot_simulation import Simulation
from tests.scheduler.test_placement import placement_of
from tinkex.engine.interface import ROLES, Role
from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.queues.slot_samples import QueuedSample

SUBSETS: list[tuple[Role, ...]] = [("train",), ("sample",), ROLES]
LONG_S = 0.25
"""A sample that waits longer may go to any slot."""

events = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "add", "take", "take", "finish", "fail", "lose", "return", "hand", "toggle"]
        ),
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    max_size=60,
)


class Samplers:
    """A sample queue, and what its slots do with their samples."""

    def __init__(self, num_slots: int, max_running: int) -> None:
        self.clock = Clock()
        self.num_slots = num_slots
        self.queue = SampleQueue(max_running=max_running, num_slots=num_slots, clock=self.clock)
        self.running: list[dict[str, QueuedSample]] = [{} for _ in range(num_slots)]
        self.is_open = [True] * num_slots
        self.num_added = 0
        self.finished: list[str] = []

    def step(self, kind: str, slot: int, number: int) -> None:
        """One thing that may happen."""
        slot %= self.num_slots
        self.clock.now += 0.02
        if kind == "add":
            self.queue.add(waiting("abc"[number % 3], self.num_added))
            self.num_added += 1
        elif kind == "take":
            self.take(slot)
        elif kind == "toggle":
            self.open(slot, is_open=not self.is_open[slot])
        elif kind == "lose":
            for queued in self.queue.interrupt(slot):
                self.queue.add(queued, first=True)
            self.running[slot] = {}
        elif self.running[slot]:
            self._with_one(kind, slot, number)

    def _with_one(self, kind: str, slot: int, number: int) -> None:
        queued = self.running[slot].pop(next(iter(self.running[slot])))
        if kind == "return":
            self.queue.return_to_all(queued, wait_s=0.1 * number)
        elif kind == "hand":
            self.queue.hand_over(queued, number % self.num_slots)
        else:
            assert self.queue.finish(queued.sample.request_id, slot) is queued
            if kind == "finish":
                self.finished.append(queued.sample.request_id)
            else:
                queued.failures += 1
                self.queue.quarantine([queued], slot)

    def take(self, slot: int) -> list[QueuedSample]:
        """What the slot gets."""
        had_work = self.queue.has_work(slot)
        taken = self.queue.take(slot)
        assert had_work or not taken, "a slot that sees no work would not have asked"
        assert self.is_open[slot] or all(each.is_bound for each in taken)
        for each in taken:
            assert all(each.sample.request_id not in slot for slot in self.running)
            self.running[slot][each.sample.request_id] = each
        return taken

    def open(self, slot: int, *, is_open: bool) -> None:
        """The slot's worker has come to sample, or is drained or trains alone."""
        self.is_open[slot] = is_open
        self.queue.set_open(slot, is_open=is_open)

    def finish_all(self, slot: int) -> None:
        """Everything that runs in the slot ends well."""
        for request_id in list(self.running[slot]):
            assert self.queue.finish(request_id, slot) is not None
            self.finished.append(request_id)
        self.running[slot] = {}


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.sampled_from([1, 3, 16]), events, st.integers(0, 3))
def test_whatever_happens_every_sample_ends_once_if_one_slot_samples(
    num_slots: int, max_running: int, steps: list[tuple[str, int, int]], last: int
) -> None:
    samplers = Samplers(num_slots, max_running)
    for each in steps:
        samplers.step(*each)
    last %= num_slots
    for slot in range(num_slots):
        if slot != last:
            samplers.finish_all(slot)
            samplers.open(slot, is_open=False)  # bound ones go to all
    samplers.open(last, is_open=True)
    rounds = 0
    while len(samplers.finished) < samplers.num_added:
        samplers.clock.now += LONG_S
        samplers.take(last)
        samplers.finish_all(last)
        rounds += 1
        assert rounds <= samplers.num_added + 4, "a sample waits for ever"
    assert samplers.queue.total() == 0
    assert (
        Counter(samplers.finished).most_common(1) == []
        or max(Counter(samplers.finished).values()) == 1
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 5), st.integers(1, 8), st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_sample_waits_no_longer_than_until_a_slot_that_samples_has_a_seat(
    num_slots: int, max_running: int, is_open: list[bool]
) -> None:
    samplers = Samplers(num_slots, max_running)
    for slot in range(num_slots):
        samplers.open(slot, is_open=is_open[slot] or slot == 0)
    for number in range(3 * max_running * num_slots):
        samplers.queue.add(waiting("ab"[number % 2], number))
    samplers.clock.now += LONG_S
    for slot in range(num_slots):
        taken = samplers.take(slot)
        assert len(taken) == (max_running if samplers.is_open[slot] else 0)
        # New tenants get a seat beside those that have them all, and no more than their share.
        samplers.queue.add(waiting(f"new-{slot}", 10**6 + slot))
    samplers.clock.now += LONG_S
    for slot in range(num_slots):
        others = samplers.take(slot)
        assert len(others) <= max_running * num_slots + 2
        if samplers.is_open[slot] and max_running > 1 and slot == 0:
            assert any(each.sample.owner.startswith("new") for each in others)


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.sampled_from(SUBSETS), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(SUBSETS)), max_size=3),
)
def test_models_run_on_slots_that_train_through_changes_of_roles(
    roles: list[tuple[Role, ...]], changes: list[tuple[int, tuple[Role, ...]]]
) -> None:
    owners = {f"{owner}{n}": owner for owner in "abc" for n in range(2)}
    simulation = Simulation(len(roles), owners, {}, cost_s=0.02)
    loads = simulation.placement.loads
    for change in [None, *changes]:
        if change is None:
            for load, each in zip(loads, roles, strict=True):
                load.roles = each
        else:
            loads[change[0] % len(roles)].roles = change[1]
        simulation.run(8.0)
        trainers = [n for n, load in enumerate(loads) if load.trains]
        for slot in range(len(roles)):
            if slot not in trainers:
                assert simulation.placement.models_of(slot) == []
        simulation.used_s.clear()
        simulation.run(5.0)
        if not trainers:
            assert not simulation.used_s
            continue
        used = [simulation.used_s[owner] for owner in "abc"]
        assert sum(used) >= 0.8 * 5.0 * len(trainers)
        assert min(used) > 0.0, "none waits while others run"


@pytest.mark.parametrize("num_sampling", [0, 2])
def test_idle_time_earns_a_tenant_no_claim_across_slots(num_sampling: int) -> None:
    owners = {f"{owner}{n}": owner for owner in "abcd" for n in range(3)}
    simulation = Simulation(2 + num_sampling, owners, {}, cost_s=0.02)
    for load in simulation.placement.loads[2:]:
        load.roles = ("sample",)
    simulation.paused = {"a"}
    simulation.run(60.0)
    assert simulation.used_s["a"] <= 1.0, "what was on its way"
    simulation.paused = set()
    simulation.used_s.clear()
    simulation.resume("a")
    simulation.run(5.0)
    assert simulation.used_s["a"] <= 5.0, "no more than half: three others want as much"
    simulation.run(35.0)
    used = [simulation.used_s[owner] for owner in "abcd"]
    assert max(used) - min(used) <= 0.25 * max(used), used


def test_drained_slots_do_not_pass_their_models_to_each_other() -> None:
    placement = placement_of(0.0, 0.0, 0.0)
    placement.assign("m", 0.0)
    placement.loads[0].is_draining = placement.loads[1].is_draining = True
    assert placement.other_slot(0, 0.0) == 2
    placement.loads[2].roles = ("sample",)
    assert placement.other_slot(0, 0.0) is None
    assert placement.other_slot(1, 0.0) is None
    placement.loads[2].roles = ROLES
    placement.loads[2].is_up = lambda: False
    assert placement.other_slot(0, 0.0) is None, "the model would wait there for an engine"


def test_what_failed_in_a_drained_slot_is_retried_in_another() -> None:
    queue = SampleQueue(num_slots=2)
    queue.add(waiting("a", 0))
    (taken,) = queue.take(0)
    queue.set_open(0, is_open=False)  # it is drained while the sample runs
    queue.finish(taken.sample.request_id, 0)
    queue.quarantine([taken], 0)
    assert queue.take(1) == [taken]


def test_samples_that_need_a_trainer_do_not_hold_up_their_tenants_others_for_long() -> None:
    clock = Clock()
    queue = SampleQueue(num_slots=2, clock=clock)
    for number in range(200):
        queue.add(waiting("a", number))
    queue.add(waiting("a", 200))
    taken: list[str] = []
    for _ in range(6):  # each time, no trainer has come yet
        clock.now += 1.5
        for each in queue.take(0):
            taken.append(each.sample.request_id)
            if each.sample.request_id != "a-200":
                queue.return_to_all(each, wait_s=1.0)
    assert "a-200" in taken


def test_a_single_slot_waits_too_before_it_tries_a_sample_again() -> None:
    clock = Clock()
    queue = SampleQueue(num_slots=1, clock=clock)
    queue.add(waiting("a", 0))
    (taken,) = queue.take(0)
    queue.return_to_all(taken, wait_s=1.0)
    assert not queue.has_work(0)
    assert queue.take(0) == []
    clock.now += 1.5
    assert queue.has_work(0)
    assert queue.take(0) == [taken]
