"""Cancels sampling requests, whether they wait or run.

A cancelled request ends with a typed error, and its seats in the engine are free at the next step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tinkex import crashpoints
from tinkex.engine.interface import EngineError
from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.queues.slot_samples import QueuedSample
from tinkex.scheduler.running.outcomes import Publish
from tinkex.scheduler.running.sample_streams import SampleStreams
from tinkex.scheduler.slot import EngineSlot
from tinkex.scheduler.work_counters import WorkCounters
from tinkex.store import Database, StoreError, samples
from tinkex.store.results import error_result

__all__ = ["SampleCancelling"]

_BY_CLIENT = "The request was cancelled by its client."


class SampleCancelling:
    """Cancels sampling requests. Any thread may use it."""

    def __init__(
        self,
        db: Database,
        sample_queue: SampleQueue,
        slots: Sequence[EngineSlot],
        publish: Publish,
        streams: SampleStreams,
        counters: WorkCounters,
    ) -> None:
        self._db = db
        self._sample_queue = sample_queue
        self._slots = slots
        self._publish = publish
        self._streams = streams
        self._counters = counters

    def cancel(self, owner: str, request_id: str, reason: str = _BY_CLIENT) -> bool:
        """Whether the owner's request was still unfinished; it ends as cancelled."""
        queued = self._sample_queue.cancel(request_id, owner)
        if queued is None:
            return False
        self._drop(queued)
        crashpoints.passing("sample.cancelled")
        result = error_result(reason, category="user", code="cancelled")
        try:
            self._db.write(samples.finish, [(queued.sample, result)])
        except StoreError:
            self._sample_queue.add(queued, first=True)  # nothing was kept, so it is not over
            raise
        self._counters.count_sample("cancelled", queued.sample.created_at)
        self._publish({request_id: result}, {queued.sample.sampling_session_id})
        self._streams.end([request_id])
        return True

    def cancel_all(self, owner: str) -> int:
        """How many unfinished requests of the owner were cancelled."""
        mine = [each.sample for each in self._sample_queue.unfinished()]
        return sum(self.cancel(owner, each.request_id) for each in mine if each.owner == owner)

    def cancel_sessions(self, sampling_session_ids: set[str], before: float, reason: str) -> int:
        """How many unfinished requests of these sampling sessions, that came before this time,
        were cancelled."""
        old = self._sample_queue.older_than(before, sampling_session_ids)
        return sum(self.cancel(each.owner, each.request_id, reason) for each in old)

    def _drop(self, queued: QueuedSample) -> None:
        """Has the engine that runs the request forget it."""
        if queued.slot_id is None:
            return
        engine = self._slots[queued.slot_id].supervisor.current
        if engine is not None:
            with contextlib.suppress(EngineError):  # an engine that died has forgotten it anyway
                engine.cancel_sample(queued.sample.request_id)
