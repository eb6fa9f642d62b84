"""The lock of what slots share, and for each slot a way to wake its thread.

An operation concerns one slot. If all were woken, each would search for work under the lock: with a
thousand slots that would take longer than the work.
"""

from __future__ import annotations

import threading

__all__ = ["SlotWakeups"]


class SlotWakeups:
    """A lock, and one condition on it per slot. `with` takes the lock; the rest needs it held."""

    def __init__(self, num_slots: int) -> None:
        self._lock = threading.RLock()
        self._conditions = [threading.Condition(self._lock) for _ in range(num_slots)]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, slot_id: int, timeout_s: float) -> None:
        """Releases the lock until the slot is woken, or the timeout."""
        self._conditions[slot_id].wait(timeout_s)

    def notify(self, slot_id: int) -> None:
        """Wakes the thread of one slot."""
        self._conditions[slot_id].notify()

    def notify_all(self) -> None:
        """Wakes the threads of all slots."""
        for each in self._conditions:
            each.notify()
