"""Order within a model: by number, with holes, refusals and late first chunks."""

from __future__ import annotations

import random

import pytest
from tests.scheduler.work import operation

from tinkex.scheduler.order import ModelQueue


def queue(**options: object) -> ModelQueue:
    return ModelQueue("m", "alice", "null", next_seq=1, **options)  # type: ignore[arg-type]


def drain(waiting: ModelQueue, now: float = 0.0) -> list[int]:
    done = []
    while waiting.head() is not None:
        done.append(waiting.pop(now).seq_id)
    return done


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_order_of_arrival_the_order_of_numbers_holds(seed: int) -> None:
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
    waiting.consume(4, 0.0)
    waiting.consume(3, 0.0)
    waiting.add(operation("m", 5), 0.0)
    assert drain(waiting) == [2, 5]


def test_a_hole_is_a_hole_after_the_grace_period_of_quiet() -> None:
    waiting = queue()
    waiting.add(operation("m", 3), 0.0)
    assert waiting.holes(9.9, 10.0) == []
    waiting.add(operation("m", 5), 9.0)
    assert waiting.holes(12.0, 10.0) == [], "an arrival restarts the clock"
    assert waiting.holes(19.1, 10.0) == [1, 2]
    for number in (1, 2):
        waiting.consume(number, 19.1)
    assert drain(waiting, 19.1) == [3]
    assert waiting.holes(20.0, 10.0) == [], "number 4 has a clock of its own"


def test_arrivals_cannot_keep_a_hole_open_for_ever() -> None:
    waiting = queue()
    for second in range(60):
        waiting.add(operation("m", 2 + second), float(second))
        if waiting.holes(float(second), 10.0):
            break
    assert second == 50


def test_nothing_waits_nothing_is_missing() -> None:
    waiting = queue()
    assert waiting.holes(1e9, 1.0) == []
    waiting.add(operation("m", 1), 0.0)
    assert waiting.holes(1e9, 1.0) == []
    assert drain(waiting) == [1]
    assert waiting.holes(2e9, 1.0) == []


def test_a_number_that_has_passed_is_ignored() -> None:
    waiting = queue()
    waiting.add(operation("m", 0), 0.0)
    assert len(waiting) == 0


def test_a_gap_of_any_width_is_passed_a_little_at_a_time() -> None:
    waiting = queue()
    waiting.add(operation("m", 2**31 - 1), 0.0)
    first = waiting.holes(10.0, 1.0, most=3)
    assert first == [1, 2, 3]
    for number in first:
        waiting.consume(number, 10.0)
    assert waiting.holes(10.0, 1.0, most=3) == [4, 5, 6], "without another time of grace"
