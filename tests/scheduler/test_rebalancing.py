"""When a model moves to another slot: what is lost otherwise has to be worth it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.scheduler.slot_simulation import Simulation
from tinkex.scheduler.queues.planner import ReadyModel
from tinkex.scheduler.rebalancing import (
    TIMES_COST,
    SlotWork,
    model_for_fairness,
    model_for_idle,
    overworked,
)


def ready(model_id: str, *, used_s: float = 0.0, tokens: int = 1, runs: bool = False) -> ReadyModel:
    """A model that has work."""
    return ReadyModel(model_id, f"owner of {model_id}", used_s, tokens, runs)


def work(
    *models: ReadyModel,
    backlog_s: float = 0.0,
    busy: float = 0.0,
    is_computing: bool = False,
    active: tuple[str, ...] = (),
) -> SlotWork:
    """What a slot has to do."""
    return SlotWork(
        busy=busy,
        backlog_s=backlog_s,
        ready=list(models),
        is_computing=is_computing,
        active=list(active),
    )


def test_an_idle_slot_gets_the_largest_waiting_model_of_the_largest_backlog() -> None:
    small = work(ready("a"), ready("b"), backlog_s=4.0)
    large = work(ready("c"), ready("d", tokens=9), ready("e", tokens=99, runs=True), backlog_s=5.0)
    assert model_for_idle([small, large], cost_s=1.0) == "d"


def test_a_backlog_that_is_not_worth_a_move_stays() -> None:
    slot = work(ready("a"), ready("b"), backlog_s=2.9)
    assert model_for_idle([slot], cost_s=1.0) is None


def test_a_model_alone_stays_however_much_waits_for_it() -> None:
    assert model_for_idle([work(ready("a"), backlog_s=100.0)], cost_s=1.0) is None
    beside = work(ready("a"), backlog_s=100.0, is_computing=True)
    assert model_for_idle([beside], cost_s=1.0) == "a", "the slot computes for another"


def test_a_slot_that_always_works_for_several_gives_one_of_them() -> None:
    assert overworked([work(busy=0.9, active=("a",)), work(busy=0.5, active=("b", "c"))]) is None
    assert overworked([work(busy=0.9, active=("a", "b"))]) == "a"


def test_the_tenant_with_the_least_engine_time_gets_a_place_where_others_are_ahead() -> None:
    mine = [ready("a", used_s=10.0), ready("b", used_s=12.0)]
    other = work(ready("c", used_s=1.0), ready("d", used_s=6.0))
    assert model_for_fairness(mine, [other], cost_s=1.0) == "c"
    assert model_for_fairness(mine, [other], cost_s=3.1) is None
    assert model_for_fairness([], [other], cost_s=1.0) is None
    assert model_for_fairness(mine, [work(ready("c"))], cost_s=1.0) is None, "it is next there"


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=4),
            st.floats(0, 100),
            st.booleans(),
        ),
        max_size=4,
    ),
    st.floats(0.001, 10),
)
def test_nothing_moves_that_computes_or_is_alone_or_not_worth_it(
    slots: list[tuple[list[tuple[float, bool]], float, bool]], cost_s: float
) -> None:
    others = [
        work(
            *[ready(f"{n}-{i}", used_s=u, runs=r) for i, (u, r) in enumerate(models)],
            backlog_s=backlog_s,
            is_computing=is_computing,
        )
        for n, (models, backlog_s, is_computing) in enumerate(slots)
    ]
    mine = [ready("mine", used_s=50.0)]
    for found in (model_for_idle(others, cost_s), model_for_fairness(mine, others, cost_s)):
        if found is not None:
            (giver,) = [each for each in others if found in [m.model_id for m in each.ready]]
            (model,) = [each for each in giver.ready if each.model_id == found]
            assert not model.is_running
            assert giver.is_computing or len(giver.ready) > 1
    idle = model_for_idle(others, cost_s)
    assert idle is None or max(each.backlog_s for each in others) > TIMES_COST * cost_s


@pytest.mark.parametrize("num_others", [1, 2, 5])
def test_models_in_two_slots_give_a_tenant_no_more_than_others_get(num_others: int) -> None:
    """Each slot works all the time; "a" has a model in both, all others begin in slot 0."""
    owners = {"a0": "a", "a1": "a", **{f"b{n}": f"b{n}" for n in range(num_others)}}
    simulation = Simulation(2, owners, {"a1": 1}, cost_s=0.05, operation_s=0.05)
    simulation.run(60.0)
    simulation.used_s.clear()
    simulation.run(120.0)
    fair_s = 120.0 * 2 / (num_others + 1)
    fair_s = min(fair_s, 120.0)  # one model computes on one slot at a time
    for owner in set(owners.values()) - {"a"}:
        assert simulation.used_s[owner] >= 0.9 * fair_s, simulation.used_s
    assert simulation.used_s["a"] >= 0.9 * (240.0 - num_others * fair_s)


def test_a_burst_of_models_spreads_over_all_slots_and_then_stays() -> None:
    owners = {f"m{n}": f"owner-{n}" for n in range(32)}
    simulation = Simulation(8, owners, {}, cost_s=0.02, operation_s=0.05)
    simulation.run(20.0)
    before = simulation.num_moves
    simulation.used_s.clear()
    simulation.run(60.0)
    assert sum(simulation.used_s.values()) >= 0.95 * 8 * 60.0
    assert simulation.num_moves - before <= 60, "about one a second at most"


def test_no_tenant_waits_for_ever_beside_one_with_many_models() -> None:
    owners = {**{f"a{n}": "a" for n in range(40)}, "b": "b"}
    simulation = Simulation(2, owners, {f"a{n}": n % 2 for n in range(40)}, cost_s=0.1)
    simulation.run(60.0)
    assert simulation.used_s["b"] >= 0.9 * 60.0, "one model computes on one slot at a time"
