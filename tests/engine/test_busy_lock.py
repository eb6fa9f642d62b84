"""The lock that measures how long an engine computes."""

from __future__ import annotations

import threading
import time

from tinkex.engine.busy_lock import BusyLock


def test_holds_are_summed_and_waiting_is_not() -> None:
    lock = BusyLock()
    assert lock.busy_seconds == 0
    for _ in range(2):
        with lock:
            time.sleep(0.02)
    total = lock.busy_seconds
    assert total >= 0.04
    time.sleep(0.02)
    assert lock.busy_seconds == total


def test_a_nested_hold_counts_once_and_the_present_hold_counts() -> None:
    lock = BusyLock()
    began = time.monotonic()
    with lock:
        with lock:
            time.sleep(0.02)
        assert lock.busy_seconds >= 0.02, "the outer hold has not ended"
    assert lock.busy_seconds <= time.monotonic() - began


def test_it_excludes_other_threads() -> None:
    lock, order = BusyLock(), []

    def other() -> None:
        with lock:
            order.append("other")

    with lock:
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
