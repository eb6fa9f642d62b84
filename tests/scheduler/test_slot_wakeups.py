"""Waking one slot's thread, or all."""

from __future__ import annotations

import threading

from tests.support.waiting import wait_until
from tinkex.scheduler.slot_load import SlotLoad
from tinkex.scheduler.slot_overview import SlotOverview
from tinkex.scheduler.slot_wakeups import SlotWakeups


def test_one_slot_or_all_are_woken() -> None:
    wakeups = SlotWakeups(3)
    waiting: set[int] = set()
    woken: list[int] = []

    def wait(slot_id: int) -> None:
        with wakeups:
            waiting.add(slot_id)
            wakeups.wait(slot_id, 60.0)
            woken.append(slot_id)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(3)]
    for each in threads:
        each.start()
    wait_until(lambda: len(waiting) == 3)
    with wakeups:
        wakeups.notify(1)
    threads[1].join(60)
    assert woken == [1]
    with wakeups:
        wakeups.notify_all()
    for each in threads:
        each.join(60)
    assert sorted(woken) == [0, 1, 2]


def test_slots_share_what_one_saw_a_moment_ago() -> None:
    loads = [SlotLoad() for _ in range(3)]
    overview = SlotOverview(loads)
    loads[1].begin(0.0)
    overview.update(60.0)
    assert overview.busy == [1]
    assert overview.without_engine == []
    loads[2].starting_s = lambda: 1.0
    overview.update(60.01)
    assert overview.without_engine == [], "seen a moment ago"
    overview.update(60.1)
    assert overview.without_engine == [2]
