"""Which slot a model goes to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tinkex.scheduler.placement import MoveCost, Placement
from tinkex.scheduler.slot_load import BUSY_SHARE, SlotLoad


def placement_of(*busy: float, max_models: int = 64) -> Placement:
    """Slots that have worked for these shares of the time, as of second 0."""
    loads = [SlotLoad() for _ in busy]
    for load, share in zip(loads, busy, strict=True):
        load._state = (share, 0.0, False)
    return Placement(loads, max_models=max_models)


def test_a_model_stays_with_its_slot_and_new_ones_fill_a_slot_before_they_spread() -> None:
    placement = placement_of(0.2, 0.6, 0.8)
    assert [placement.assign(name, 0.0) for name in "abc"] == [1, 1, 1]
    placement.loads[1]._state = (0.75, 0.0, False)
    assert [placement.assign(name, 0.0) for name in "abcd"] == [1, 1, 1, 0]


def test_when_all_are_busy_the_least_busy_gets_the_next_model() -> None:
    placement = placement_of(0.9, 0.8, 0.95)
    assert placement.assign("a", 0.0) == 1


def test_a_slot_without_an_engine_or_without_room_or_drained_gets_none() -> None:
    placement = placement_of(0.6, 0.5, 0.4, 0.3, max_models=1)
    placement.loads[0].is_up = lambda: False
    placement.loads[1].is_draining = True
    assert [placement.assign(name, 0.0) for name in "ab"] == [2, 3]
    assert placement.assign("c", 0.0) == 2, "all are full: the fullest that is not busy"


def test_without_any_engine_a_model_still_gets_a_slot_that_is_not_drained() -> None:
    placement = placement_of(0.0, 0.0)
    for load in placement.loads:
        load.is_up = lambda: False
    placement.loads[0].is_draining = True
    assert placement.assign("a", 0.0) == 1


def test_only_the_slot_that_has_a_model_releases_it() -> None:
    placement = placement_of(0.0, 0.0)
    assert placement.assign("a", 0.0) == 0
    placement.release("a", 1)
    assert placement.slot_of("a") == 0
    placement.release("unknown", 0)
    placement.release("a", 0)
    assert placement.slot_of("a") is None


def test_a_move_is_requested_once_and_ends_with_the_model_at_the_new_slot() -> None:
    placement = placement_of(0.0, 0.0, 0.0)
    placement.assign("a", 0.0)
    assert not placement.request_move("a", 0), "it is there"
    assert not placement.request_move("b", 1), "it is nowhere"
    assert placement.request_move("a", 1)
    assert not placement.request_move("a", 2), "it is on its way"
    assert placement.requested_moves(0) == {"a": 1}
    assert placement.moving_to(1) == ["a"]
    placement.move("a", 0, 1)
    assert placement.slot_of("a") == 1
    assert not placement.has_requested_moves(0)
    assert placement.moving_to(1) == []


def test_a_move_that_fails_can_be_requested_again() -> None:
    placement = placement_of(0.0, 0.0)
    placement.assign("a", 0.0)
    placement.request_move("a", 1)
    placement.keep("a", 0)
    assert placement.slot_of("a") == 0
    assert placement.request_move("a", 1)


def test_the_cost_of_a_move_follows_what_was_measured() -> None:
    cost = MoveCost()
    assert cost.seconds > 0
    for _ in range(50):
        cost.record(1.5)
    assert abs(cost.seconds - 3.0) < 1e-6, "to give a model away and to load it"


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 10.0)), max_size=30))
def test_the_busy_share_is_a_share_and_goes_to_what_is_measured(
    steps: list[tuple[bool, float]],
) -> None:
    load, now = SlotLoad(), 0.0
    for is_working, seconds in steps:
        (load.begin if is_working else load.end)(now)
        before, now = load.busy(now), now + seconds
        assert 0.0 <= load.busy(now) <= 1.0
        assert load.busy(now) >= before if is_working else load.busy(now) <= before
    load.begin(now)
    assert load.busy(now + 60.0) > 0.99
    load.end(now + 60.0)
    assert load.busy(now + 120.0) < 0.01


class Placing(RuleBasedStateMachine):
    """Whatever happens, a model is with one slot, and nothing is moved but what that slot has."""

    @initialize(num_slots=st.integers(1, 5))
    def begin(self, num_slots: int) -> None:
        self.placement = placement_of(*[0.0] * num_slots)
        self.where: dict[str, int] = {}

    slots: Any = st.integers(0, 4)
    models: Any = st.sampled_from("abcdefgh")

    @rule(model=models, busy=st.lists(st.floats(0, 1), min_size=5, max_size=5))
    def assign(self, model: str, busy: list[float]) -> None:
        for load, share in zip(self.placement.loads, busy, strict=False):
            load._state = (share, 0.0, False)
        slot = self.placement.assign(model, 0.0)
        if model not in self.where:
            loads = [load.busy(0.0) for load in self.placement.loads]
            free = [each for each in loads if each < BUSY_SHARE]
            assert loads[slot] == (max(free) if free else min(loads))
        assert self.where.setdefault(model, slot) == slot

    @rule(model=models, slot=slots)
    def release(self, model: str, slot: int) -> None:
        if slot < self.placement.num_slots:
            self.placement.release(model, slot)
            if self.where.get(model) == slot:
                del self.where[model]

    @rule(model=models, slot=slots)
    def move(self, model: str, slot: int) -> None:
        if slot < self.placement.num_slots and self.placement.request_move(model, slot):
            self.placement.move(model, self.where[model], slot)
            self.where[model] = slot

    @invariant()
    def each_model_is_with_one_slot(self) -> None:
        if not hasattr(self, "placement"):
            return
        held = [
            (model, slot)
            for slot in range(self.placement.num_slots)
            for model in self.placement.models_of(slot)
        ]
        assert sorted(held) == sorted(self.where.items())
        assert all(self.placement.slot_of(model) == slot for model, slot in held)


TestPlacing = Placing.TestCase
