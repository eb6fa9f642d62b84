"""Divides an engine's sampling time among the requests that run in it.

In each interval every running sequence gets the same share. A clock adds up the time of one
sequence; it is read when a request joins and when it leaves.
"""

from __future__ import annotations

from tinkex.scheduler.queues.slot_samples import QueuedSample

__all__ = ["SamplingTime"]


class SamplingTime:
    """The clock of one engine slot. Used by its thread only."""

    def __init__(self) -> None:
        self._per_sequence_s = 0.0

    def join(self, queued: QueuedSample) -> None:
        """Records that the request is in the engine from now on."""
        queued.joined_at = self._per_sequence_s

    def passed(self, seconds: float, num_sequences: int) -> None:
        """Counts an interval in which so many sequences ran."""
        if num_sequences:
            self._per_sequence_s += seconds / num_sequences

    def leave(self, queued: QueuedSample) -> None:
        """Records the request's share of the time in it."""
        queued.engine_s = (self._per_sequence_s - queued.joined_at) * queued.sample.num_samples
