"""Divides an engine's sampling time among the requests that run in it.

In each spell every sequence that runs gets the same part. A clock adds up the time of one sequence,
so that a request costs one look at it when it joins and one when it leaves.
"""

from __future__ import annotations

from tinkex.scheduler.queues.slot_samples import QueuedSample

__all__ = ["SamplingTime"]


class SamplingTime:
    """The clock of one engine slot. Used by its thread only."""

    def __init__(self) -> None:
        self._per_sequence_s = 0.0

    def join(self, queued: QueuedSample) -> None:
        """Notes that the request is in the engine from now on."""
        queued.joined_at = self._per_sequence_s

    def passed(self, seconds: float, num_sequences: int) -> None:
        """Counts a spell in which so many sequences ran."""
        if num_sequences:
            self._per_sequence_s += seconds / num_sequences

    def leave(self, queued: QueuedSample) -> None:
        """Notes in the request how much of the time was its part."""
        queued.engine_s = (self._per_sequence_s - queued.joined_at) * queued.sample.num_samples
