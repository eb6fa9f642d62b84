"""Fair shares, and what goes into one batch."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from tests.scheduler.work import operation
from tinkex.fair_queue import FairShares
from tinkex.scheduler.queues.model_queue import ModelQueue
from tinkex.scheduler.queues.planner import BatchLimits, Computed, Planner
from tinkex.store.operations import Operation


def test_equal_cost_is_served_for_any_size_of_the_operations() -> None:
    shares = FairShares()
    costs = {"small": 10, "large": 1000}
    served: Counter[str] = Counter()
    for _ in range(2000):
        key = shares.pick(costs)
        served[key] += costs[key]
    assert abs(served["small"] - served["large"]) <= 1000


def test_who_was_away_has_saved_nothing_up() -> None:
    shares = FairShares()
    for _ in range(100):
        shares.pick({"a": 10})
    picks = [shares.pick({"a": 10, "b": 10}) for _ in range(10)]
    assert Counter(picks) == {"a": 5, "b": 5}


def test_a_newcomer_is_next_however_small_the_pieces_of_the_others() -> None:
    shares = FairShares()
    for _ in range(10_000):
        shares.pick({"many": 1, "others": 1})
    for _ in range(10):
        shares.update({"many", "others"})
        assert shares.pick({"many": 1, "others": 1, "newcomer": 500}) == "newcomer"
        for _ in range(2000):  # in which the others get as much
            shares.pick({"many": 1, "others": 1})


def test_a_short_pause_does_not_reset_what_a_tenant_has_used() -> None:
    shares = FairShares()
    served: Counter[str] = Counter()
    for _ in range(100):
        costs = {"patient": 10, "hasty": 1000}
        key = shares.pick(costs)
        served[key] += costs[key]
        shares.update({"patient"})
    assert served["hasty"] <= served["patient"] + 1000


def test_one_who_waits_alone_is_served() -> None:
    assert FairShares().pick({"a": 10**12}) == "a"


def test_the_memory_of_tenants_that_left_does_not_grow() -> None:
    shares = FairShares()
    for number in range(1000):
        shares.pick({f"tenant {number}": 10, "other": 10})
        shares.pick({"other": 10})
        shares.update({"other"})
    assert len(shares._used) < 10


NOW = 1000.0
"""When batches are put together: long after everything has come, unless a test says otherwise."""


def planner(**limits: float) -> Planner:
    """A planner that has seen operations of both kinds take a millisecond each."""
    plan = Planner(msgspec.convert(limits, BatchLimits))
    fill(plan, "before", "m", "forward", "optim_step", cost=100)
    for _ in range(2):
        run(plan, plan.next_batch(NOW), 0.001)
    plan.close("m")
    return plan


def fill(plan: Planner, owner: str, model_id: str, *kinds: str, cost: int = 100, base: str = "b"):
    plan.open(ModelQueue(model_id, owner, base, next_seq=1))
    for number, kind in enumerate(kinds, 1):
        plan.add(operation(model_id, number, kind=kind, cost=cost, owner=owner), 0.0)


def run(plan: Planner, operations: list[Operation], seconds: float) -> None:
    """Has the engine compute a batch in so long."""
    if operations:
        plan.finished(operations, [Computed(operations=operations, busy_seconds=seconds)])


def batch(plan: Planner, per_operation_s: float = 0.001, now: float = NOW) -> list[str]:
    """The next batch, run."""
    operations = plan.next_batch(now)
    run(plan, operations, per_operation_s * len(operations))
    return [each.request_id for each in operations]


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


@pytest.mark.parametrize("does_sample", [False, True])
def test_passes_run_one_by_one_while_another_tenant_waits_for_each_of_its_results(
    does_sample: bool,
) -> None:
    """Between two of its requests it has nothing queued, but the next one comes at once."""
    plan = planner()
    fill(plan, "greedy", "g", *["forward_backward"] * 8)
    if does_sample:
        plan.note_sample("polite", NOW)
    else:
        plan.open(ModelQueue("p", "polite", "b", next_seq=1))
        plan.add(operation("p", 1, kind="forward_backward", cost=100, owner="polite"), NOW)
        assert sorted(batch(plan)) == ["g-1", "p-1"]
    assert len(batch(plan, now=NOW + 1)) == 1
    assert len(batch(plan, now=NOW + 9)) == 1
    assert len(batch(plan, now=NOW + 60)) > 1


def test_a_tenants_own_requests_do_not_split_its_batches() -> None:
    plan = planner()
    fill(plan, "alice", "a", *["forward_backward"] * 4)
    plan.note_sample("alice", NOW)
    assert batch(plan) == ["a-1", "a-2", "a-3", "a-4"]


def test_the_time_to_keep_results_is_part_of_a_batch() -> None:
    """Passes of 10 ms, of which five fit into 50 ms, and three if their commit takes 20."""
    for keep_s, most in ((0.0, 5), (0.02, 3)):
        plan = Planner(BatchLimits(max_s=0.0501))
        fill(plan, "alice", "a", *["forward_backward"] * 60)
        sizes = []
        for _ in range(8):
            operations = plan.next_batch(NOW)
            seconds = 0.01 * len(operations)
            computed = Computed(operations=operations, busy_seconds=seconds, keep_s=keep_s)
            plan.finished(operations, [computed])
            sizes.append(len(operations))
        assert sizes[-1] == most


def test_an_unmeasured_model_gets_one_operation_of_each_run_at_a_time() -> None:
    plan = Planner(BatchLimits())
    fill(plan, "alice", "a", *["forward"] * 3)
    fill(plan, "bob", "b", *["forward"] * 3)
    assert sorted(batch(plan)) == ["a-1", "b-1"]


def test_a_batch_of_one_model_is_bounded_by_the_time_it_takes() -> None:
    plan = planner(max_s=0.05)
    fill(plan, "alice", "a", *["forward"] * 100)
    sizes = [len(batch(plan, per_operation_s=0.01)) for _ in range(8)]
    assert sizes[0] > 5, "it was thought to be quicker"
    assert all(size <= 5 for size in sizes[2:]), sizes
    assert sizes[-1] >= 3, sizes


def test_operations_longer_than_the_bound_run_one_by_one() -> None:
    plan = planner(max_s=0.05)
    fill(plan, "alice", "a", *["forward"] * 10, cost=5000)
    sizes = [len(batch(plan, per_operation_s=2.0)) for _ in range(4)]
    assert sizes[1:] == [1, 1, 1]


def test_tenants_share_a_pass_that_takes_long_up_to_a_multiple_of_one_operation() -> None:
    plan = planner(max_s=0.05, max_shared=4)
    for number in range(12):
        fill(plan, f"tenant {number}", f"m{number}", "forward", "forward", cost=1000)
    sizes = [len(batch(plan, per_operation_s=1.0)) for _ in range(5)]
    assert all(2 <= size <= 4 for size in sizes[1:]), sizes


def test_a_tenant_with_nothing_running_goes_next() -> None:
    plan = planner()
    fill(plan, "greedy", "g", *["forward"] * 300)
    for _ in range(5):
        assert batch(plan, 0.01)
    fill(plan, "polite", "p", "forward", cost=10_000)
    assert batch(plan, 0.01)[0] == "p-1"


def test_time_is_shared_not_tokens() -> None:
    """One tenant's tokens take a hundred times as long: it does not get a hundred times more."""
    plan = planner(max_operations=1)
    fill(plan, "slow", "s", *["save_weights"] * 200, cost=10)
    fill(plan, "quick", "q", *["forward"] * 20_000, cost=10)
    used_s: Counter[str] = Counter()
    while sum(used_s.values()) < 20:
        (operation,) = plan.next_batch(NOW)
        seconds = 0.1 if operation.owner == "slow" else 0.001
        run(plan, [operation], seconds)
        used_s[operation.owner] += seconds
    assert abs(used_s["slow"] - used_s["quick"]) < 0.3


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


def test_the_next_batch_is_reported_only_if_others_may_join_it() -> None:
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


def test_optimizer_steps_and_other_base_models_do_not_wait() -> None:
    for base, kind in (("base", "optim_step"), ("other", "forward_backward")):
        planner = Planner(BatchLimits())
        planner.open(ModelQueue("one", "a", "base"))
        planner.add(operation("one", 0), 0.0)
        planner.open(ModelQueue("two", "a", base))
        planner.add(operation("two", 0, kind=kind), 0.0)
        assert planner.forward_heads() is None, (base, kind)


def test_a_tenant_that_is_ahead_of_others_does_not_join_their_batches() -> None:
    """Sharing a pass is no way to more than a fair share of the engine's time."""
    plan = planner()
    fill(plan, "large", "l", *["forward"] * 200, cost=5000)
    fill(plan, "small", "s", *["forward"] * 2000, cost=100)
    used_s: Counter[str] = Counter()
    while used_s["small"] < 10:
        operations = plan.next_batch(NOW)
        seconds = {"large": 0.5, "small": 0.01}
        run(plan, operations, sum(seconds[each.owner] for each in operations))
        for each in operations:
            used_s[each.owner] += seconds[each.owner]
    assert abs(used_s["large"] - used_s["small"]) <= 1.5


def test_a_step_is_not_passed_for_ever_by_another_model_of_its_tenant() -> None:
    plan = planner()
    fill(plan, "alice", "stepping", "optim_step")
    fill(plan, "alice", "running", *["forward"] * 300)
    fill(plan, "bob", "b", *["forward"] * 300)
    first = [batch(plan, 0.02) for _ in range(4)]
    assert any("stepping-1" in each for each in first), first


def test_operations_of_any_size_of_a_tenant_alone_share_a_batch() -> None:
    plan = planner()
    plan.open(ModelQueue("a", "alice", "b", next_seq=1))
    for number, cost in enumerate((1000, 10, 10, 10), 1):
        plan.add(operation("a", number, kind="forward", cost=cost, owner="alice"), 0.0)
    assert batch(plan) == ["a-1", "a-2", "a-3", "a-4"]


def test_refused_operations_do_not_make_work_look_cheap() -> None:
    plan = planner(max_s=0.05)
    fill(plan, "alice", "a", *["forward"] * 40, cost=1000)
    for _ in range(10):
        batch(plan, per_operation_s=0.04)
    fill(plan, "mallory", "m", "forward", cost=15_000)
    refused = plan.next_batch(NOW)
    assert refused[0].owner == "mallory"
    plan.finished(refused, [Computed(operations=refused, busy_seconds=0.0001, is_typical=False)])
    assert len(batch(plan, per_operation_s=0.04)) == 1


def test_work_that_was_lost_with_an_engine_is_not_charged() -> None:
    plan = planner(max_operations=1)
    fill(plan, "alice", "a", *["forward"] * 50)
    fill(plan, "bob", "b", *["forward"] * 50)
    for _ in range(20):
        batch(plan, 0.1)
    lost = plan.next_batch(NOW)
    plan.finished(lost, [])  # the engine hung for a minute, and its next one refused the operation
    following = [plan.next_batch(NOW)[0] for _ in range(6)]
    assert Counter(each.owner for each in following) == {"alice": 3, "bob": 3}


def test_a_batch_that_is_given_back_is_the_next_one_again_but_not_for_ever() -> None:
    plan = planner()
    fill(plan, "alice", "m", "forward", "forward", "optim_step")
    rounds, taken = 0, plan.next_batch(NOW)
    names = [each.request_id for each in taken]
    while plan.may_give_back(taken):
        rounds += 1
        plan.finished(taken, [])
        plan.give_back(taken, NOW)
        taken = plan.next_batch(NOW)
        assert [each.request_id for each in taken] == names
    assert rounds == 3
    run(plan, taken, 0.001)
    plan.forget_returns(taken)
    assert plan.may_give_back(taken)
    assert [each.kind for each in plan.next_batch(NOW)] == ["optim_step"]
