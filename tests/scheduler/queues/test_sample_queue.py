"""Which samples the engine gets next, by owner."""

from __future__ import annotations

from collections import Counter

from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.queues.slot_samples import QueuedSample
from tinkex.store.samples import Sample


def waiting(owner: str, number: int, cost: int = 100) -> QueuedSample:
    sample = Sample(
        request_id=f"{owner}-{number}",
        owner=owner,
        sampling_session_id=f"{owner}:sample:0",
        seq_id=number,
        num_samples=1,
        cost=cost,
        state="queued",
        created_at=0.0,
    )
    return QueuedSample(sample=sample)


def test_samples_of_a_newcomer_are_in_the_next_batch() -> None:
    sample_queue = SampleQueue(max_running=16)
    for number in range(500):
        sample_queue.add(waiting("greedy", number))
    running = sample_queue.take(0)
    assert Counter(each.sample.owner for each in running) == {"greedy": 16}
    for number in range(3):
        sample_queue.add(waiting("polite", number))
    for each in running:
        sample_queue.finish(each.sample.request_id, 0)
    following = Counter(each.sample.owner for each in sample_queue.take(0))
    assert following["polite"] == 3


def test_samples_are_shared_by_what_they_cost() -> None:
    sample_queue = SampleQueue(max_running=8)
    for number in range(400):
        sample_queue.add(waiting("long", number, cost=4000))
        sample_queue.add(waiting("short", number, cost=400))
    served: Counter[str] = Counter()
    for _ in range(40):
        for each in sample_queue.take(0):
            served[each.sample.owner] += each.sample.cost
            sample_queue.finish(each.sample.request_id, 0)
    assert abs(served["long"] - served["short"]) <= 2 * 4000, served


def test_a_newcomer_gets_a_place_while_others_have_them_all() -> None:
    sample_queue = SampleQueue(max_running=16)
    for number in range(500):
        sample_queue.add(waiting("greedy", number))
    assert len(sample_queue.take(0)) == 16
    assert sample_queue.take(0) == [], "one tenant alone gets no more than there are"
    for number in range(50):
        sample_queue.add(waiting("polite", number))
    assert [each.sample.owner for each in sample_queue.take(0)] == ["polite"] * 8, "an even share"
    sample_queue.add(waiting("third", 0))
    assert [each.sample.owner for each in sample_queue.take(0)] == ["third"]
    assert sample_queue.take(0) == []


def test_many_tenants_get_a_place_each_and_no_more() -> None:
    sample_queue = SampleQueue(max_running=16)
    for number in range(500):
        sample_queue.add(waiting("greedy", number))
    sample_queue.take(0)
    for owner in range(40):
        for number in range(3):
            sample_queue.add(waiting(f"tenant-{owner}", number))
    taken = Counter(each.sample.owner for each in sample_queue.take(0))
    assert taken == {f"tenant-{owner}": 1 for owner in range(40)}
    assert sample_queue.take(0) == []


def test_short_requests_do_not_wait_for_places_of_their_own_tenants_long_ones() -> None:
    sample_queue = SampleQueue(max_running=16)
    for number in range(500):
        sample_queue.add(waiting("a", number, cost=20_000))
    sample_queue.take(0)
    for number in range(500, 600):
        sample_queue.add(waiting("a", number, cost=100))
    short = sample_queue.take(0)
    assert [each.sample.seq_id for each in short] == [500, 501, 502, 503], (
        "a quarter more, in order"
    )
    sample_queue.finish(short[0].sample.request_id, 0)
    assert [each.sample.seq_id for each in sample_queue.take(0)] == [504]


def test_a_limit_of_one_is_kept_strictly() -> None:
    sample_queue = SampleQueue(max_running=1)
    sample_queue.add(waiting("a", 0, cost=100_000))
    assert len(sample_queue.take(0)) == 1
    sample_queue.add(waiting("a", 1, cost=1))
    sample_queue.add(waiting("b", 0, cost=1))
    assert sample_queue.take(0) == []


def test_what_ran_when_the_engine_died_is_first_again_and_in_order() -> None:
    sample_queue = SampleQueue(max_running=2)
    for number in range(4):
        sample_queue.add(waiting("a", number, cost=1000 * (number + 1)))
    assert len(sample_queue.take(0)) == 2
    sample_queue.add(waiting("a", 4, cost=1))
    for each in reversed(sample_queue.interrupt(0)):
        sample_queue.add(each, first=True)
    assert [each.sample.seq_id for each in sample_queue.take(0)] == [0, 1]
    assert sample_queue.cancel("a-2", "a") is not None
    assert sample_queue.cancel("a-2", "a") is None
    assert sample_queue.total() == sample_queue.pending("a") == 4


def test_slots_share_what_waits_and_each_has_the_limit_for_itself() -> None:
    sample_queue = SampleQueue(max_running=4, num_slots=2)
    for number in range(20):
        sample_queue.add(waiting("a", number))
    first, second = sample_queue.take(0), sample_queue.take(1)
    assert [len(first), len(second)] == [4, 4]
    assert {each.slot_id for each in first} == {0}
    ids = {each.sample.request_id for each in (*first, *second)}
    assert len(ids) == 8, "none runs twice"
    assert sample_queue.finish(first[0].sample.request_id, 1) is None, "it runs on the other one"
    assert sample_queue.finish(first[0].sample.request_id, 0) is first[0]


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_slot_leaves_the_others_their_share_until_it_has_waited_for_long() -> None:
    clock = Clock()
    sample_queue = SampleQueue(max_running=256, num_slots=2, clock=clock)
    for number in range(40):
        sample_queue.add(waiting("a", number))
    assert len(sample_queue.take(0)) == 20
    assert sample_queue.take(0) == []
    clock.now += 0.3
    assert len(sample_queue.take(0)) == 20, "no other slot took them"


def test_a_few_requests_are_not_divided() -> None:
    sample_queue = SampleQueue(max_running=256, num_slots=2, clock=Clock())
    for number in range(8):
        sample_queue.add(waiting("a", number))
    assert [len(sample_queue.take(0)), len(sample_queue.take(1))] == [8, 0]


def test_a_sampler_is_used_where_it_is_loaded_and_elsewhere_only_after_a_wait() -> None:
    clock = Clock()
    sample_queue = SampleQueue(max_running=256, num_slots=2, clock=clock)
    session = waiting("a", 0).sample.sampling_session_id
    sample_queue.note_loaded(session, 1, is_base=False)
    for number in range(4):
        sample_queue.add(waiting("a", number))
    assert not sample_queue.has_work(0)
    assert sample_queue.take(0) == []
    assert len(sample_queue.take(1)) == 4
    for number in range(4, 8):
        sample_queue.add(waiting("a", number))
    clock.now += 0.3
    assert sample_queue.has_work(0)
    assert len(sample_queue.take(0)) == 4
    sample_queue.note_unloaded(session, 1)
    sample_queue.add(waiting("a", 8))
    assert len(sample_queue.take(0)) == 1, "no slot has it any more"


def test_the_base_model_is_loaded_everywhere() -> None:
    sample_queue = SampleQueue(max_running=256, num_slots=2, clock=Clock())
    sample_queue.note_loaded(waiting("a", 0).sample.sampling_session_id, 1, is_base=True)
    sample_queue.add(waiting("a", 0))
    assert len(sample_queue.take(0)) == 1


def test_a_lost_engine_has_nothing_loaded() -> None:
    sample_queue = SampleQueue(max_running=256, num_slots=2, clock=Clock())
    sample_queue.note_loaded(waiting("a", 0).sample.sampling_session_id, 1, is_base=False)
    sample_queue.interrupt(1)
    sample_queue.add(waiting("a", 0))
    assert len(sample_queue.take(0)) == 1


def test_a_closed_slot_takes_nothing_and_gives_back_what_waits_for_it_alone() -> None:
    sample_queue = SampleQueue(max_running=8, num_slots=2, clock=Clock())
    for number in range(3):
        sample_queue.add(waiting("a", number))
    handed, suspect, _running = sample_queue.take(0)
    sample_queue.hand_over(handed, 1)
    sample_queue.finish(suspect.sample.request_id, 0)
    sample_queue.quarantine([suspect], 1)
    sample_queue.set_open(1, is_open=False)
    assert not sample_queue.has_work(1)
    assert sample_queue.take(1) == []
    assert sample_queue.take(0) == [], "the suspect waits there until it can run alone"
    sample_queue.interrupt(0)
    assert sample_queue.take(0) == [suspect]
    sample_queue.interrupt(0)
    assert sample_queue.take(0) == [handed]
    sample_queue.set_open(1, is_open=True)
    sample_queue.add(waiting("a", 3))
    assert len(sample_queue.take(1)) == 1


def test_what_one_slot_lost_is_no_business_of_the_other() -> None:
    sample_queue = SampleQueue(max_running=32, num_slots=2, clock=Clock())
    for number in range(30):
        sample_queue.add(waiting("a", number))
    lost, kept = sample_queue.take(0), sample_queue.take(1)
    assert [len(lost), len(kept)] == [15, 15]
    assert sample_queue.interrupt(0) == lost
    sample_queue.quarantine(lost, 0)
    for each in kept[:10]:
        sample_queue.finish(each.sample.request_id, 1)
    sample_queue.add(waiting("a", 100))
    more = [*sample_queue.take(1), *sample_queue.take(1)]
    assert [each.sample.seq_id for each in more] == [100], "nothing of slot 0"
    assert len(sample_queue.take(0)) == 1, "a suspect runs alone there"
    assert sample_queue.take(0) == []
    assert sample_queue.interrupt(1)[:5] == kept[10:]


def test_a_sample_that_was_handed_over_runs_on_that_slot_only() -> None:
    sample_queue = SampleQueue(max_running=8, num_slots=2)
    sample_queue.add(waiting("a", 0))
    (taken,) = sample_queue.take(0)
    sample_queue.hand_over(taken, 1)
    assert (sample_queue.has_work(0), sample_queue.has_work(1)) == (False, True)
    assert sample_queue.is_waiting("a", taken.sample.request_id)
    assert sample_queue.total() == sample_queue.pending("a") == 1
    assert sample_queue.take(0) == []
    assert sample_queue.take(1) == [taken]
    sample_queue.finish(taken.sample.request_id, 1)
    sample_queue.add(waiting("a", 1))
    (other,) = sample_queue.take(1)
    sample_queue.hand_over(other, 0)
    assert sample_queue.cancel(other.sample.request_id, "b") is None
    assert sample_queue.cancel(other.sample.request_id, "a") is other
    assert sample_queue.total() == 0


def test_a_sample_cancelled_while_it_was_prepared_is_not_handed_over() -> None:
    sample_queue = SampleQueue(max_running=8, num_slots=2)
    sample_queue.add(waiting("a", 0))
    (taken,) = sample_queue.take(0)
    assert sample_queue.cancel(taken.sample.request_id, "a") is taken
    sample_queue.hand_over(taken, 1)
    assert sample_queue.total() == 0
    assert sample_queue.drain_cancelled(1) == []
    assert sample_queue.drain_cancelled(0) == [taken.sample.request_id]
