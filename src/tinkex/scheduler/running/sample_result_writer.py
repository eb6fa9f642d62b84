"""Writes the results of sampling to the store while engines go on, then publishes them.

One thread, in the order of arrival; results that came while others were written are written
together. A result is published only after it is on disk; one that is
lost with the process is still open in the log and is computed again. While the store fails, callers
of `write` wait.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping

from tinkex import crashpoints
from tinkex.engine.interface import RequestError, SampleResult
from tinkex.scheduler.convert import sample_response
from tinkex.scheduler.queues.slot_samples import QueuedSample
from tinkex.scheduler.running.outcomes import Publish, as_server_error, failure_result
from tinkex.scheduler.running.sample_streams import SampleStreams
from tinkex.scheduler.running.store_retries import StoreRetries
from tinkex.scheduler.work_counters import TokenUse, WorkCounters
from tinkex.store import Database, samples
from tinkex.store.results import Result
from tinkex.store.usage_sums import Spent
from tinkex.types.model_input import EncodedTextChunk
from tinkex.wire import protobuf

_logger = logging.getLogger(__name__)
_MAX_BATCHES = 64
_MAX_RESULTS = 256
"""Results at which a commit takes no further batch: its size follows from them."""

Finished = list[tuple[QueuedSample, SampleResult | RequestError]]


class SampleResultWriter:
    """Takes finished requests from the threads of all engine slots."""

    def __init__(
        self,
        db: Database,
        publish: Publish,
        streams: SampleStreams,
        is_over: Callable[[], bool],
        counters: WorkCounters,
    ) -> None:
        self._db, self._publish, self._streams = db, publish, streams
        self._counters = counters
        self._store_retries = StoreRetries(is_over)
        self._batches: queue.Queue[Finished | None] = queue.Queue(_MAX_BATCHES)
        self._is_closing = False  # for the thread: nothing comes any more
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
        while finished := self._next():
            try:
                self._write(finished)
            except Exception:
                # Most likely the store was closed. The requests are open in the log: the next start
                # computes them again, or finds that their results are there.
                _logger.exception("%d results of sampling were not published.", len(finished))

    def _next(self) -> Finished:
        """What waits, or the next batch to come; empty at the end."""
        finished: Finished = []
        while not self._is_closing and len(finished) < _MAX_RESULTS:
            try:
                batch = self._batches.get(block=not finished)
            except queue.Empty:
                break
            self._is_closing = batch is None
            finished += batch or []
        return finished

    def _write(self, finished: Finished) -> None:
        outcomes = [(queued.sample, _encode(result, queued)) for queued, result in finished]
        crashpoints.passing("sample.finished")
        spent = {queued.sample.request_id: _spent(result, queued) for queued, result in finished}
        self._store_retries.run(lambda: self._db.write(samples.finish, outcomes, spent))
        crashpoints.passing("result.kept", "sample")
        self._count(finished, spent)
        self._publish(
            {sample.request_id: result for sample, result in outcomes},
            {sample.sampling_session_id for sample, _ in outcomes},
        )
        self._streams.end([sample.request_id for sample, _ in outcomes])

    def _count(self, finished: Finished, spent: Mapping[str, Spent]) -> None:
        for queued, result in finished:
            request_id = queued.sample.request_id
            is_ok = isinstance(result, SampleResult) and result.error is None
            tokens = _tokens(spent[request_id]) if is_ok else None
            outcome = "ok" if is_ok else "error"
            self._counters.count_sample(outcome, queued.sample.created_at, tokens)
            if self._counters.listener is not None:
                self._counters.listener.sample_done(request_id, queued.taken_at, time.monotonic())


def _spent(result: SampleResult | RequestError, queued: QueuedSample) -> Spent:
    """What the request used; of its prompt, tokens are either computed or found in the cache."""
    if isinstance(result, RequestError) or result.error is not None or queued.request is None:
        return Spent(engine_s=queued.engine_s)
    chunks = queued.request.prompt.chunks
    num_prompt = sum(each.length for each in chunks if isinstance(each, EncodedTextChunk))
    cached = min(num_prompt, result.prompt_cache_hit_tokens or 0)
    return Spent(
        tokens_sampled=sum(len(each.tokens) for each in result.sequences),
        tokens_scored=num_prompt - cached,
        tokens_cached=cached,
        engine_s=queued.engine_s,
    )


def _tokens(spent: Spent) -> dict[TokenUse, int]:
    return {
        "sampled": spent.tokens_sampled,
        "prompt": spent.tokens_scored + spent.tokens_cached,
        "prompt_cached": spent.tokens_cached,
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
