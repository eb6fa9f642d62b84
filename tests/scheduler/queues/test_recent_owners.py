"""Which tenants sent work a moment ago, in seconds that are passed in."""

from __future__ import annotations

import random

from tinkex.scheduler.queues.recent_owners import RecentOwners


def test_a_tenant_alone_has_no_neighbours() -> None:
    recent = RecentOwners()
    assert not recent.are_several(0.0)
    for now in range(20):
        recent.sent("a", float(now))
        assert not recent.are_several(float(now))
        assert not recent.has_others("a", float(now))
        assert recent.has_others("b", float(now))


def test_a_neighbour_counts_for_ten_seconds() -> None:
    recent = RecentOwners()
    recent.sent("a", 0.0)
    recent.sent("b", 5.0)
    assert recent.are_several(9.9)
    assert not recent.are_several(10.1)
    recent.sent("a", 11.0)
    assert recent.are_several(14.9)
    assert recent.has_others("a", 14.9)
    assert not recent.has_others("a", 15.1)


def test_any_history_is_answered_as_by_a_look_at_all_of_it() -> None:
    for seed in range(50):
        dice, recent, sent_at, now = random.Random(seed), RecentOwners(), {}, 0.0
        for _ in range(100):
            now += dice.choice([0.0, 1.0, 4.0, 12.0])
            owner = dice.choice("abcd")
            if dice.random() < 0.6:
                recent.sent(owner, now)
                sent_at[owner] = now
            active = {each for each, then in sent_at.items() if now - then < 10.0}
            assert recent.are_several(now) == (len(active) > 1), seed
            assert recent.has_others(owner, now) == bool(active - {owner}), seed
