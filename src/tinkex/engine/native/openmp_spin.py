"""Controls whether threads that share a product spin or sleep while they wait for each other.

A step of sampling is hundreds of short products, and waking a thread that sleeps costs about as
much as its share of one. Spinning saves that, a third of a step and more, while no other process
needs the cores. Otherwise it does harm: a thread uses up its time slice by waiting, and has none
left when there is work. So threads spin, for a tenth of a millisecond at most, until the kernel
reports that this process had to queue for a core; then they sleep until it has not for a while.

GNU's OpenMP, which torch brings along, reads how long to spin once, when it is loaded
(`GOMP_SPINCOUNT`, set by `process`). But it does not spin while there are more threads in its teams
than cores: one more thread with a team of its own, asleep, turns spinning off, and its end turns it
on again. With another OpenMP, or without Linux's `/proc`, nothing here has any effect.
"""

from __future__ import annotations

import atexit
import threading
import time
from pathlib import Path

import torch

__all__ = ["SpinGovernor"]

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_WINDOW_S = 0.1
_QUIET_S = 0.5
_CROWDED = 0.25
"""Threshold of the share of its time that a thread queues for a core: 0.005 on cores of its own,
over 0.1 for moments while requests come in, 0.3 to 0.5 beside one busy neighbour on two cores,
whether threads spin or sleep.
"""


class SpinGovernor:
    """Watches the computing thread, which calls `look` repeatedly as it works."""

    def __init__(self) -> None:
        self._can_tell = _SCHEDSTAT.exists()
        self._thread_id = 0  # the one that was looked at
        self._looked_at = self._queued_s = 0.0
        self._quiet_s = 0.0
        self._sleeper: _Sleeper | None = None

    @property
    def is_crowded(self) -> bool:
        """Whether other processes need the cores, so that threads sleep."""
        return self._sleeper is not None

    def look(self) -> None:
        """Measures how long the thread queued since the last measurement, if that
        was long enough ago."""
        now, thread_id = time.monotonic(), threading.get_ident()
        passed_s = now - self._looked_at
        if not self._can_tell or passed_s < _WINDOW_S:
            return
        queued_s = int(_SCHEDSTAT.read_text().split()[1]) / 1e9  # since the thread began
        if thread_id == self._thread_id:
            self.note(passed_s, queued_s - self._queued_s)
        self._thread_id, self._looked_at, self._queued_s = thread_id, now, queued_s

    def note(self, passed_s: float, queued_s: float) -> None:
        """Decides by how many seconds of a period the thread queued for a core."""
        if queued_s > _CROWDED * passed_s:
            self._quiet_s = 0.0
            self._sleeper = self._sleeper or _Sleeper()
            return
        self._quiet_s += passed_s
        if self._sleeper is not None and self._quiet_s >= _QUIET_S:
            self._sleeper.end()
            self._sleeper = None


class _Sleeper:
    """A thread that gets a team by one parallel operation and then sleeps."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sleeper", daemon=True)
        self._thread.start()
        atexit.register(self.end)  # or it would meet a half-ended interpreter

    def end(self) -> None:
        """Ends the thread, and its team with it."""
        atexit.unregister(self.end)
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        torch.ones(2**18).add_(1.0)  # large enough to be shared out
        self._is_over.wait()
