"""Whose turn it is, and what goes into one batch."""

from __future__ import annotations

from collections import Counter

from tests.scheduler.work import operation

from tinkex.fairness import FairTurns
from tinkex.scheduler.order import ModelQueue
from tinkex.scheduler.plan import BatchLimits, Planner


def test_equal_cost_is_served_whatever_the_size_of_the_pieces() -> None:
    turns = FairTurns()
    costs = {"small": 10, "large": 1000}
    served: Counter[str] = Counter()
    for _ in range(2000):
        key = turns.pick(costs)
        served[key] += costs[key]
    assert abs(served["small"] - served["large"]) <= 1000


def test_who_was_away_has_saved_nothing_up() -> None:
    turns = FairTurns()
    for _ in range(100):
        turns.pick({"a": 10})
    picks = [turns.pick({"a": 10, "b": 10}) for _ in range(10)]
    assert Counter(picks) == {"a": 5, "b": 5}


def test_a_newcomer_is_next_however_small_the_pieces_of_the_others() -> None:
    turns = FairTurns()
    for _ in range(10_000):
        turns.pick({"many": 1, "others": 1})
    for _ in range(10):
        turns.forget_idle({"many", "others"})
        assert turns.pick({"many": 1, "others": 1, "newcomer": 500}) == "newcomer"
        for _ in range(2000):  # in which the others get as much
            turns.pick({"many": 1, "others": 1})


def test_nobody_escapes_what_it_has_used_by_going_away_for_a_moment() -> None:
    turns = FairTurns()
    served: Counter[str] = Counter()
    for _ in range(100):
        costs = {"patient": 10, "hasty": 1000}
        key = turns.pick(costs)
        served[key] += costs[key]
        turns.forget_idle({"patient"})
    assert served["hasty"] <= served["patient"] + 1000


def test_one_who_waits_alone_is_served() -> None:
    assert FairTurns().pick({"a": 10**12}) == "a"


def test_the_memory_of_tenants_that_left_does_not_grow() -> None:
    turns = FairTurns()
    for number in range(1000):
        turns.pick({f"tenant {number}": 10, "other": 10})
        turns.pick({"other": 10})
        turns.forget_idle({"other"})
    assert len(turns._used) < 10


def planner(**limits: int) -> Planner:
    return Planner(BatchLimits(**limits))


def fill(plan: Planner, owner: str, model_id: str, *kinds: str, cost: int = 100, base: str = "b"):
    plan.open(ModelQueue(model_id, owner, base, next_seq=1))
    for number, kind in enumerate(kinds, 1):
        plan.add(operation(model_id, number, kind=kind, cost=cost, owner=owner), 0.0)


def batch(plan: Planner) -> list[str]:
    return [each.request_id for each in plan.next_batch(0.0)]


def test_forward_passes_of_several_tenants_share_a_batch() -> None:
    plan = planner()
    fill(plan, "alice", "a", "forward_backward", "optim_step")
    fill(plan, "bob", "b", "forward", "optim_step")
    assert sorted(batch(plan)) == ["a-1", "b-1"]
    assert sorted(batch(plan)) == ["a-2", "b-2"]
    assert batch(plan) == []


def test_chunks_of_one_model_share_a_batch_in_order_but_steps_do_not() -> None:
    plan = planner()
    fill(plan, "alice", "a", "forward_backward", "forward_backward", "optim_step", "optim_step")
    assert batch(plan) == ["a-1", "a-2"]
    assert batch(plan) == ["a-3"]
    assert batch(plan) == ["a-4"]


def test_a_batch_is_bounded_by_tokens_and_by_operations() -> None:
    plan = planner(max_tokens=250, max_operations=64)
    fill(plan, "alice", "a", *["forward"] * 5, cost=100)
    assert [len(batch(plan)) for _ in range(3)] == [2, 2, 1]
    plan = planner(max_operations=1)
    fill(plan, "alice", "a", "forward", "forward")
    assert [len(batch(plan)) for _ in range(2)] == [1, 1]


def test_one_operation_above_the_bound_runs_alone() -> None:
    plan = planner(max_tokens=10)
    fill(plan, "alice", "a", "forward", cost=1000)
    assert batch(plan) == ["a-1"]


def test_other_base_models_and_other_kinds_wait() -> None:
    plan = planner()
    fill(plan, "alice", "a", "forward")
    fill(plan, "bob", "b", "forward", base="other")
    fill(plan, "carol", "c", "save_weights")
    assert {len(batch(plan)) for _ in range(3)} == {1}


def test_a_greedy_tenant_does_not_starve_a_polite_one() -> None:
    plan = planner(max_operations=1)
    for number in range(20):
        fill(plan, "greedy", f"g{number}", *["forward"] * 5, cost=1000)
    fill(plan, "polite", "p", *["forward"] * 3, cost=1000)
    first = [batch(plan)[0] for _ in range(8)]
    assert sum(name.startswith("p-") for name in first) == 3
    assert plan.pending("greedy") == 95


def test_blocked_models_are_known() -> None:
    plan = planner()
    plan.open(ModelQueue("a", "alice", "b", next_seq=1))
    plan.add(operation("a", 2), 0.0)
    assert not plan.has_ready()
    assert [each.model_id for each in plan.blocked()] == ["a"]


def test_what_could_run_is_told_only_if_others_may_join_it() -> None:
    planner = Planner(BatchLimits(max_tokens=1000, max_operations=3))
    assert planner.forward_heads() is None

    def open_model(model_id: str, base: str = "base", *, kind: str = "forward_backward") -> None:
        planner.open(ModelQueue(model_id, "a", base))
        planner.add(operation(model_id, 0, kind=kind, cost=300), 0.0)

    open_model("one")
    assert planner.forward_heads() == ("base", {"one": 300})
    open_model("two")
    assert planner.forward_heads() == ("base", {"one": 300, "two": 300})
    open_model("three")
    assert planner.forward_heads() is None, "the batch is full"


def test_steps_and_other_bases_wait_for_nobody() -> None:
    for base, kind in (("base", "optim_step"), ("other", "forward_backward")):
        planner = Planner(BatchLimits())
        planner.open(ModelQueue("one", "a", "base"))
        planner.add(operation("one", 0), 0.0)
        planner.open(ModelQueue("two", "a", base))
        planner.add(operation("two", 0, kind=kind), 0.0)
        assert planner.forward_heads() is None, (base, kind)
