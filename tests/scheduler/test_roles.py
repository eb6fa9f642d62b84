"""Slots whose workers only train or only sample."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.queues.test_sample_queue import Clock, waiting
from tests.scheduler.slot_simulation import Simulation
from tests.scheduler.test_placement import placement_of
from tinkex.engine.interface import ROLES, Role
from tinkex.scheduler.queues.sample_queue import SampleQueue

SUBSETS: list[tuple[Role, ...]] = [("train",), ("sample",), ROLES]


@given(st.lists(st.sampled_from(SUBSETS), min_size=1, max_size=6), st.integers(1, 30))
def test_models_go_only_to_slots_that_train(roles: list[tuple[Role, ...]], count: int) -> None:
    placement = placement_of(*[0.0] * len(roles), max_models=3)
    for load, each in zip(placement.loads, roles, strict=True):
        load.roles = each
    trainers = {n for n, each in enumerate(roles) if "train" in each}
    for number in range(count):
        slot = placement.assign(str(number), 0.0)
        assert (slot in trainers) if trainers else (slot is None)
    for slot in range(len(roles)):
        other = placement.other_slot(slot, 0.0)
        assert (other in trainers - {slot}) if trainers - {slot} else (other is None)


def test_a_move_to_a_slot_that_does_not_train_any_more_leaves_the_model_to_all() -> None:
    placement = placement_of(0.0, 0.0)
    assert placement.assign("a", 0.0) == 0
    assert placement.request_move("a", 1)
    placement.loads[1].roles = ("sample",)
    placement.move("a", 0, 1)
    assert placement.slot_of("a") is None
    assert placement.assign("a", 0.0) == 0


def test_on_a_simulated_clock_slots_that_train_share_all_work_and_others_get_none() -> None:
    owners = {f"{owner}{n}": owner for owner in "abc" for n in range(4)}
    simulation = Simulation(4, owners, {}, cost_s=0.2)
    for slot in (2, 3):
        simulation.placement.loads[slot].roles = ("sample",)
    simulation.run(60.0)
    placement = simulation.placement
    assert [len(placement.models_of(slot)) for slot in (2, 3)] == [0, 0]
    used = [simulation.used_s[owner] for owner in "abc"]
    assert sum(used) > 0.9 * 2 * 60.0, "both that train work nearly all the time"
    assert max(used) - min(used) < 0.1 * sum(used)


def test_a_slot_that_does_not_sample_takes_none_and_is_left_with_none() -> None:
    queue = SampleQueue(num_slots=2)
    queue.quarantine([waiting("a", 0)], 0)
    queue.set_open(1, is_open=False)
    queue.set_open(0, is_open=False)
    queue.add(waiting("a", 1))
    assert not queue.has_work(0)
    assert not queue.has_work(1)
    assert queue.take(0) == queue.take(1) == []
    queue.set_open(1, is_open=True)  # a sampler has come
    assert [each.sample.request_id for each in queue.take(1)] == ["a-0"]


def test_one_slot_that_does_not_sample_takes_none() -> None:
    queue = SampleQueue(num_slots=1)
    queue.add(waiting("a", 0))
    queue.set_open(0, is_open=False)
    assert not queue.has_work(0)
    assert queue.take(0) == []


def test_what_a_slot_without_an_engine_would_retry_is_taken_over() -> None:
    queue = SampleQueue(num_slots=2)
    queue.quarantine([waiting("a", 0)], 0)
    queue.take_over([0], 1)
    assert not queue.has_work(0)
    assert [each.sample.request_id for each in queue.take(1)] == ["a-0"]


def test_a_returned_sample_waits_and_then_runs_anywhere() -> None:
    clock = Clock()
    queue = SampleQueue(num_slots=2, clock=clock)
    queue.add(waiting("a", 0))
    (taken,) = queue.take(0)
    queue.return_to_all(taken, wait_s=1.0)
    assert queue.take(0) == queue.take(1) == []
    clock.now += 1.5
    assert queue.take(1) == [taken]
