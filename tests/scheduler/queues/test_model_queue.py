"""Order within a model: by number, with missing numbers, refusals and late first chunks."""

from __future__ import annotations

import random

import pytest

from tests.scheduler.work import operation
from tinkex.scheduler.queues.model_queue import ModelQueue


def queue(**options: object) -> ModelQueue:
    return ModelQueue("m", "alice", "null", next_seq=1, **options)  # type: ignore[arg-type]


def drain(waiting: ModelQueue) -> list[int]:
    done = []
    while waiting.head() is not None:
        done.append(waiting.pop().seq_id)
    return done


@pytest.mark.parametrize("seed", range(20))
def test_operations_run_in_the_order_of_their_numbers_for_any_order_of_arrival(seed: int) -> None:
    numbers = list(range(1, 30))
    random.Random(seed).shuffle(numbers)
    waiting, done = queue(), []
    for number in numbers:
        waiting.add(operation("m", number), 0.0)
        done += drain(waiting)
    assert done == list(range(1, 30))


def test_a_number_blocks_those_after_it_until_it_comes() -> None:
    waiting = queue()
    waiting.add(operation("m", 2), 0.0)
    waiting.add(operation("m", 3), 0.0)
    assert waiting.head() is None
    waiting.add(operation("m", 1), 5.0)
    assert drain(waiting) == [1, 2, 3]


def test_refused_numbers_are_passed_whenever_the_refusal_comes() -> None:
    waiting = queue(refused={1})
    waiting.add(operation("m", 2), 0.0)
    waiting.consume(4)
    waiting.consume(3)
    waiting.add(operation("m", 5), 0.0)
    assert drain(waiting) == [2, 5]


def test_a_missing_number_is_passed_after_the_grace_period() -> None:
    waiting = queue()
    waiting.add(operation("m", 3), 0.0)
    assert waiting.missing(9.9, 10.0) == []
    assert waiting.missing(10.0, 10.0) == [1, 2]


@pytest.mark.parametrize("every_s", [0.5, 4.0, 9.0])
def test_later_arrivals_do_not_make_the_wait_longer(every_s: float) -> None:
    waiting, number = queue(), 2
    now = 0.0
    while not waiting.missing(now, 10.0):
        waiting.add(operation("m", number), now)
        number, now = number + 1, now + every_s
    assert 10.0 <= now < 10.0 + every_s


def test_each_missing_number_counts_from_the_first_later_arrival() -> None:
    waiting = queue()
    waiting.add(operation("m", 3), 0.0)
    waiting.add(operation("m", 5), 9.0)
    for number in waiting.missing(10.0, 10.0):
        waiting.consume(number)
    assert drain(waiting) == [3]
    assert waiting.missing(18.9, 10.0) == [], "number 4 is missing since 9.0"
    assert waiting.missing(19.0, 10.0) == [4]


def test_the_clock_is_stopped_while_a_request_is_being_received() -> None:
    waiting = queue()
    waiting.add(operation("m", 3), 0.0)
    waiting.stop_clock(2.0)
    waiting.stop_clock(50.0)
    assert waiting.missing(500.0, 10.0) == []
    waiting.add(operation("m", 2), 500.0)
    waiting.go_on(500.0)
    assert waiting.missing(507.9, 10.0) == []
    assert waiting.missing(508.0, 10.0) == [1]
    waiting.add(operation("m", 1), 508.0)
    assert drain(waiting) == [1, 2, 3]


def test_a_slow_upload_before_a_later_number_is_not_counted_against_it() -> None:
    waiting = queue()
    waiting.stop_clock(0.0)
    waiting.add(operation("m", 2), 100.0)
    waiting.go_on(100.0)
    assert waiting.missing(109.9, 10.0) == []
    assert waiting.missing(110.0, 10.0) == [1]


def test_nothing_waits_nothing_is_missing() -> None:
    waiting = queue()
    assert waiting.missing(1e9, 1.0) == []
    waiting.add(operation("m", 1), 0.0)
    assert waiting.missing(1e9, 1.0) == []
    assert drain(waiting) == [1]
    assert waiting.missing(2e9, 1.0) == []


def test_a_number_that_has_passed_is_ignored() -> None:
    waiting = queue()
    waiting.add(operation("m", 0), 0.0)
    assert len(waiting) == 0


def test_a_gap_of_any_width_is_passed_a_little_at_a_time() -> None:
    waiting = queue()
    waiting.add(operation("m", 2**31 - 1), 0.0)
    first = waiting.missing(10.0, 1.0, most=3)
    assert first == [1, 2, 3]
    for number in first:
        waiting.consume(number)
    assert waiting.missing(10.0, 1.0, most=3) == [4, 5, 6], "without another time of grace"


def test_operations_that_are_put_back_run_in_their_order_and_refused_numbers_stay_refused() -> None:
    waiting = queue(refused={2})
    for number in (1, 3, 4, 5):
        waiting.add(operation("m", number), 0.0)
    taken = [waiting.pop(), waiting.pop()]
    for each in reversed(taken):
        waiting.put_back(each, 1.0)
    assert drain(waiting) == [1, 3, 4, 5]
