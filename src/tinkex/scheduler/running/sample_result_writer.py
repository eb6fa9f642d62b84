"""Writes the results of sampling to the store while engines go on, then publishes them.

One thread, in the order of arrival. A result is published only after it is on disk; one that is
lost with the process is still open in the log and is computed again. While the store fails, callers
of `write` wait.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from tinkex import crashpoints
from tinkex.engine.interface import RequestError, SampleResult
from tinkex.scheduler.convert import sample_response
from tinkex.scheduler.queues.slot_samples import QueuedSample
from tinkex.scheduler.running.outcomes import Publish, as_server_error, failure_result
from tinkex.scheduler.running.store_retries import StoreRetries
from tinkex.scheduler.work_counters import TokenUse, WorkCounters
from tinkex.store import Database, samples
from tinkex.store.results import Result
from tinkex.wire import protobuf

_logger = logging.getLogger(__name__)
_MAX_BATCHES = 64

Finished = list[tuple[QueuedSample, SampleResult | RequestError]]


class SampleResultWriter:
    """Takes finished requests from the threads of all engine slots."""

    def __init__(
        self,
        db: Database,
        publish: Publish,
        is_over: Callable[[], bool],
        counters: WorkCounters,
    ) -> None:
        self._db, self._publish = db, publish
        self._counters = counters
        self._store_retries = StoreRetries(is_over)
        self._batches: queue.Queue[Finished | None] = queue.Queue(_MAX_BATCHES)
        self._thread = threading.Thread(target=self._run, name="tinkex-sample-writer", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def write(self, finished: Finished) -> None:
        """Has results written and published soon."""
        if finished:
            self._batches.put(finished)

    def close(self) -> None:
        """Returns when every result given to `write` is in the store."""
        self._batches.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (finished := self._batches.get()) is not None:
            try:
                self._write(finished)
            except Exception:
                # Most likely the store was closed. The requests are open in the log: the next start
                # computes them again, or finds that their results are there.
                _logger.exception("%d results of sampling were not published.", len(finished))

    def _write(self, finished: Finished) -> None:
        outcomes = [(queued.sample, _encode(result, queued)) for queued, result in finished]
        crashpoints.passing("sample.finished")
        self._store_retries.run(lambda: self._db.write(samples.finish, outcomes))
        crashpoints.passing("result.kept", "sample")
        self._count(finished)
        self._publish(
            {sample.request_id: result for sample, result in outcomes},
            {sample.sampling_session_id for sample, _ in outcomes},
        )

    def _count(self, finished: Finished) -> None:
        for queued, result in finished:
            is_ok = isinstance(result, SampleResult) and result.error is None
            tokens = _tokens(result, queued) if isinstance(result, SampleResult) and is_ok else None
            outcome = "ok" if is_ok else "error"
            self._counters.count_sample(outcome, queued.sample.created_at, tokens)
            if self._counters.listener is not None:
                request_id, now = queued.sample.request_id, time.monotonic()
                self._counters.listener.sample_done(request_id, queued.taken_at, now)


def _tokens(result: SampleResult, queued: QueuedSample) -> dict[TokenUse, int]:
    assert queued.request is not None, "it was decoded before it ran"
    return {
        "sampled": sum(int(each.tokens.size) for each in result.sequences),
        "prompt": queued.request.prompt.length,
        "prompt_cached": result.prompt_cache_hit_tokens,
    }


def _encode(result: SampleResult | RequestError, queued: QueuedSample) -> Result:
    error = result if isinstance(result, RequestError) else result.error
    if error is not None:
        return failure_result(error)
    assert isinstance(result, SampleResult), "an error or a result"
    assert queued.request is not None, "it was decoded before it ran"
    try:
        response = sample_response(result, queued.request)
        return Result(encoding="proto", body=protobuf.encode_sample_response(response))
    except Exception as wrong:
        return failure_result(as_server_error(wrong))
