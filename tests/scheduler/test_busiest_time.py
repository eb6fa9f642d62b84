"""The time of the busiest engine."""

from __future__ import annotations

from tinkex.scheduler.busiest_time import BusiestTime


def test_one_engine_is_its_own_time() -> None:
    busiest = BusiestTime()
    assert [busiest.update([each]) for each in (3.0, 4.5, 0.5)] == [3.0, 4.5, 0.5]


def test_of_several_the_one_that_computed_longest_counts_each_time() -> None:
    busiest = BusiestTime()
    assert busiest.update([5.0, 9.0]) == 0.0
    assert busiest.update([6.0, 9.0]) == 1.0
    assert busiest.update([6.0, 9.5]) == 1.5


def test_a_replaced_engine_takes_nothing_away() -> None:
    busiest = BusiestTime()
    busiest.update([5.0, 5.0])
    busiest.update([7.0, 5.0])
    assert busiest.update([0.0, 5.0]) == 2.0
    assert busiest.update([0.5, 5.0]) == 2.5
