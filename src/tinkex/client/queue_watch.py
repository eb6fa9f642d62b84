"""Reports changes of a queue's state to telemetry, an observer and the log.

Not every poll. Knows states and observers; knows nothing of HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tinkex import telemetry
from tinkex.client.clock import Clock
from tinkex.client.polling import Queue
from tinkex.telemetry import events

__all__ = ["PausedStreams", "QueueObserver", "QueueWatch"]

log = logging.getLogger("tinkex")

QueueObserver = Callable[[Queue], None]
WARN_EVERY_S = 60.0


class QueueWatch:
    """The state of one queue as it was last reported."""

    def __init__(self, clock: Clock, work: str, about: Mapping[str, Any] | None) -> None:
        """`about` is the telemetry event's metadata; without it no event is emitted."""
        self._clock = clock
        self._work = work
        self._about = about
        self._queue = Queue()
        self._warned_at = float("-inf")

    @property
    def state(self) -> str:
        """The state that was last reported."""
        return self._queue.state

    def note(self, queue: Queue, observer: QueueObserver | None) -> None:
        """Takes what the server says now; reports it if the state has changed."""
        if queue.state == self._queue.state:
            return
        self._queue = queue
        if self._about is not None:
            reported = {"queue_state": queue.state, "queue_state_reason": queue.reason}
            telemetry.execute(events.QUEUE_STATE_CHANGE, {}, {**self._about, **reported})
        self._warn(queue)
        if observer is not None:
            _tell_observer(observer, queue)

    def _warn(self, queue: Queue) -> None:
        now = self._clock.monotonic()
        if queue.state == "active" or now - self._warned_at < WARN_EVERY_S:
            return
        self._warned_at = now
        stock = "the server is at capacity" if queue.state == "paused_capacity" else queue.state
        log.warning("%s is paused: %s", self._work, queue.reason or stock)


class PausedStreams:
    """The state of one queue from many streams: paused while any of them is."""

    def __init__(self, watch: QueueWatch) -> None:
        self._watch = watch
        self._paused: set[str] = set()

    def note(self, request_id: str, queue: Queue, observer: QueueObserver | None) -> None:
        """Records the state that the server reports for one stream."""
        if queue.state != "active":
            self._paused.add(request_id)
        elif request_id in self._paused:
            self._paused.remove(request_id)
        else:
            return
        if queue.state != "active" or not self._paused:
            self._watch.note(queue, observer)


def _tell_observer(observer: QueueObserver, queue: Queue) -> None:
    """Calls an observer; its exceptions are logged and do not affect the request."""
    try:
        observer(queue)
    except Exception:
        log.exception("a queue observer raised; the request goes on")
