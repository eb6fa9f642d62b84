"""Gives one engine sampling work and passes its results on.

If the engine is lost, what ran goes back to the front of the queue. Requests that may be the cause
are quarantined: they run again apart from others, and one that fails twice ends with an error.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from tinkex import crashpoints
from tinkex.engine.interface import EngineFailure, EngineUserError, RequestError, SampleResult
from tinkex.engine.interface import SampleRequest as EngineRequest
from tinkex.errors import ClientError
from tinkex.files.errors import StorageError
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.queues.slot_samples import QueuedSample
from tinkex.scheduler.running.outcomes import (
    MAX_OUTSIDE_LOSSES,
    as_request_error,
    as_server_error,
)
from tinkex.scheduler.running.sample_preparation import OtherSlotError, SamplePreparation
from tinkex.scheduler.running.sample_result_writer import Finished, SampleResultWriter
from tinkex.scheduler.running.sample_streams import SampleStreams
from tinkex.scheduler.running.sampling_time import SamplingTime
from tinkex.scheduler.running.store_retries import StoreRetries
from tinkex.scheduler.slot_wakeups import SlotWakeups

__all__ = ["SamplingExecutor"]

_logger = logging.getLogger(__name__)
_MAX_FAILURES = 2


class SamplingExecutor:
    """Sampling on one engine. Used by the slot's thread only."""

    def __init__(
        self,
        slot_id: int,
        adapters: EngineAdapters,
        preparation: SamplePreparation,
        sample_queue: SampleQueue,
        writer: SampleResultWriter,
        streams: SampleStreams,
        wakeup: SlotWakeups,
    ) -> None:
        self._slot_id = slot_id
        self._supervisor = adapters.supervisor
        self._samplers = adapters.samplers
        self._preparation = preparation
        self._sample_queue = sample_queue
        self._writer = writer
        self._streams = streams
        self._wakeup = wakeup
        self._store_retries = StoreRetries(lambda: self._supervisor.is_closed)
        self._time = SamplingTime()
        self._submitting: list[QueuedSample] = []  # taken from the queue, not in the engine yet
        self._supervisor.on_loss(self._requeue_running)

    def run_for(self, budget_s: float) -> None:
        """Submits queued samples to the engine and lets it sample for about `budget_s`."""
        for request_id in self._sample_queue.drain_cancelled(self._slot_id):
            self._samplers.release(request_id)
            self._streams.end([request_id])
        try:
            self._submit()
            crashpoints.passing("sample.submitted")
            began = time.monotonic()
            progress = self._supervisor.engine.step_sampling(budget_s)
        except Exception as error:
            self._recover(error)
            return
        self._time.passed(time.monotonic() - began, self._sample_queue.num_sequences(self._slot_id))
        if progress.streamed:
            self._streams.add(progress.streamed)
        self._finish(progress.finished)

    def _submit(self) -> None:
        """Gives the engine what the queue has for it, in one call."""
        prepared: list[tuple[QueuedSample, EngineRequest]] = []
        for queued in self._sample_queue.take(self._slot_id):
            self._submitting = [queued]
            try:
                request = self._store_retries.run(partial(self._preparation.prepare, queued))
                prepared.append((queued, request))
                self._time.join(queued)
            except OtherSlotError as other:
                self._pass_on(queued, other)
            except (EngineUserError, StorageError, ClientError) as error:
                self._refuse(queued, as_request_error(error))
        if prepared:
            self._submitting = [queued for queued, _ in prepared]
            requests = [request for _, request in prepared]
            for request in requests:
                if request.stream:
                    self._streams.open(request.request_id, request.num_samples)
            refusals = self._supervisor.engine.submit_samples(requests)
            for (queued, _), refusal in zip(prepared, refusals, strict=True):
                if refusal is not None:
                    self._refuse(queued, refusal)
        self._submitting = []

    def _refuse(self, queued: QueuedSample, error: RequestError) -> None:
        self._samplers.release(queued.sample.request_id)
        finished = self._sample_queue.finish(queued.sample.request_id, self._slot_id)
        if finished is not None:  # else: cancelled
            self._writer.write([(queued, error)])

    def _pass_on(self, queued: QueuedSample, other: OtherSlotError) -> None:
        if other.slot_id is None:
            self._sample_queue.return_to_all(queued, other.wait_s)
        else:
            self._sample_queue.hand_over(queued, other.slot_id)
        with self._wakeup:
            self._wakeup.notify_all()

    def _finish(self, results: list[SampleResult]) -> None:
        """Passes on what the engine finished; what it failed at is retried or ends."""
        done: Finished = []
        failed: list[QueuedSample] = []
        error: RequestError | None = None
        for result in results:
            self._samplers.release(result.request_id)
            queued = self._sample_queue.finish(result.request_id, self._slot_id)
            if queued is None:  # cancelled
                self._streams.end([result.request_id])
                continue
            self._time.leave(queued)
            if result.error is not None and result.error.kind == "server":
                failed.append(queued)
                error = result.error
            else:
                done.append((queued, result))
        self._writer.write(done)
        if error is not None:
            self._retry(failed, error)

    def _recover(self, error: Exception) -> None:
        """Discards the engine; everything that ran goes back to the queue or to quarantine."""
        if self._supervisor.is_closed:
            return  # what ran is in the log and runs at the next start
        interrupted = self._sample_queue.interrupt(self._slot_id)
        suspects = self._submitting or interrupted
        self._submitting = []
        self._supervisor.discard(error)
        blamed = self._blamed(suspects, error)
        for queued in reversed(interrupted):
            if queued.sample.request_id not in blamed:
                self._sample_queue.add(queued, first=True)
        quarantined = [each for each in interrupted if each.sample.request_id in blamed]
        if quarantined:
            self._retry(quarantined, as_server_error(error))

    def _blamed(self, suspects: list[QueuedSample], error: Exception) -> set[str]:
        """The ids of the requests that may be the cause; of what comes from outside only after
        several."""
        if isinstance(error, EngineFailure) and error.is_from_outside:
            for queued in suspects:
                queued.outside_losses += 1
            suspects = [each for each in suspects if each.outside_losses >= MAX_OUTSIDE_LOSSES]
        return {each.sample.request_id for each in suspects}

    def _retry(self, requests: list[QueuedSample], error: RequestError) -> None:
        """Quarantines requests that the engine failed at; one that failed twice, the second time
        alone, ends with the error."""
        for queued in requests:
            queued.failures += 1
        if len(requests) == 1 and requests[0].failures >= _MAX_FAILURES:
            self._writer.write([(requests[0], error)])
        else:
            self._sample_queue.quarantine(requests, self._slot_id)

    def _requeue_running(self) -> None:
        """Requeues what ran in an engine that was lost over something else."""
        for queued in reversed(self._sample_queue.interrupt(self._slot_id)):
            self._sample_queue.add(queued, first=True)
