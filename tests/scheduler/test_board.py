"""Which samples the engine gets next, by owner."""

from __future__ import annotations

from collections import Counter

from tinkex.scheduler.sampling import SampleBoard, Waiting
from tinkex.store.samples import Sample


def waiting(owner: str, number: int, cost: int = 100) -> Waiting:
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
    return Waiting(sample=sample)


def test_samples_of_a_newcomer_are_in_the_next_batch() -> None:
    board = SampleBoard(max_running=16)
    for number in range(500):
        board.add(waiting("greedy", number))
    running = board.take()
    assert Counter(each.sample.owner for each in running) == {"greedy": 16}
    for number in range(3):
        board.add(waiting("polite", number))
    for each in running:
        board.finish(each.sample.request_id)
    following = Counter(each.sample.owner for each in board.take())
    assert following["polite"] == 3


def test_samples_are_shared_by_what_they_cost() -> None:
    board = SampleBoard(max_running=8)
    for number in range(400):
        board.add(waiting("long", number, cost=4000))
        board.add(waiting("short", number, cost=400))
    served: Counter[str] = Counter()
    for _ in range(40):
        for each in board.take():
            served[each.sample.owner] += each.sample.cost
            board.finish(each.sample.request_id)
    assert abs(served["long"] - served["short"]) <= 2 * 4000, served
