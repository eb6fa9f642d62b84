"""Which slot a model goes to."""

from __future__ import annotations

from tinkex.scheduler.placement import Placement


def test_a_model_stays_with_its_slot_and_a_new_one_goes_to_the_slot_with_the_fewest() -> None:
    placement = Placement(3)
    first = [placement.assign(name) for name in "abcdef"]
    assert first == [0, 1, 2, 0, 1, 2]
    assert [placement.assign(name) for name in "abcdef"] == first
    placement.release("b", 1)
    placement.release("e", 1)
    assert placement.slot_of("b") is None
    assert [placement.assign(name) for name in "gh"] == [1, 1]


def test_only_the_slot_that_has_a_model_releases_it() -> None:
    placement = Placement(2)
    assert placement.assign("a") == 0
    placement.release("a", 1)
    assert placement.slot_of("a") == 0
    placement.release("unknown", 0)
    assert [placement.assign(name) for name in "bc"] == [1, 0]
