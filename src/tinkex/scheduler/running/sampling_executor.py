"""Gives the engine sampling work, loads the samplers it needs, and hands on the results."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tinkex import crashpoints
from tinkex.engine.interface import EngineFailure, EngineUserError, RequestError, SampleResult
from tinkex.engine.interface import SampleRequest as EngineRequest
from tinkex.errors import ClientError
from tinkex.files.errors import StorageError
from tinkex.scheduler.adapters.cache import AdapterCache
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.eviction import Evictor
from tinkex.scheduler.convert import sample_request
from tinkex.scheduler.queues.sample_queue import QueuedSample, SampleQueue
from tinkex.scheduler.running.outcomes import (
    MAX_HANGS,
    Publish,
    as_request_error,
    as_server_error,
    keep_trying,
)
from tinkex.scheduler.running.sample_result_writer import Finished, SampleResultWriter
from tinkex.scheduler.supervisor import Supervisor
from tinkex.store import Database, checkpoints, samplers, samples
from tinkex.store.samplers import Sampler
from tinkex.types.requests import SampleRequest
from tinkex.wire import json

T = TypeVar("T")

_logger = logging.getLogger(__name__)
_MAX_FAILURES = 2
_ROWS_KEPT = 4096


class SamplingExecutor:
    """Sampling on the engine. Used by the driver's thread only."""

    def __init__(
        self,
        db: Database,
        supervisor: Supervisor,
        cache: AdapterCache,
        folders: DataFolders,
        sample_queue: SampleQueue,
        publish: Publish,
        evictor: Evictor,
        *,
        max_samplers: int = 64,
        idle_s: float = 60.0,
    ) -> None:
        self._db = db
        self._supervisor = supervisor
        self._cache = cache
        self._folders = folders
        self._sample_queue = sample_queue
        self._writer = SampleResultWriter(db, publish, lambda: supervisor.is_closed)
        self._max_samplers = max_samplers
        self._idle_s = idle_s
        self._evictor = evictor
        evictor.register(self._evict_one)
        self._loaded: OrderedDict[str, float] = OrderedDict()  # and when each was last used
        self._in_use: Counter[str] = Counter()
        self._sampler_of: dict[str, str] = {}
        self._rows: dict[str, Sampler] = {}
        self._at_hand: list[QueuedSample] = []  # what is being handed to the engine
        self._generation = 0

    def run_for(self, budget_s: float) -> None:
        """Feeds the engine and lets it sample for a while."""
        for request_id in self._sample_queue.drain_cancelled():
            self._release(request_id)
        try:
            self._notice_new_engine()
            self._feed()
            crashpoints.passing("sample.submitted")
            progress = self._supervisor.engine.step_sampling(budget_s)
        except Exception as error:
            self._recover(error)
            return
        self._finish(progress.finished)

    def start(self) -> None:
        """Begins to keep results."""
        self._writer.start()

    def close(self) -> None:
        """Returns when every result handed on is kept."""
        self._writer.close()

    def snapshot_taken(self, sampler_id: str) -> None:
        """Notes a sampler that the engine got by a snapshot."""
        self._notice_new_engine()
        self._loaded[sampler_id] = time.monotonic()
        self._evict_over_limit()

    def free(self, sampler_id: str) -> None:
        """Lets the engine forget a sampler."""
        self._rows.pop(sampler_id, None)
        self._loaded.pop(sampler_id, None)
        self._supervisor.engine.unload_sampler(sampler_id)

    def idle(self) -> str | None:
        """A sampler nobody used for long; its weights are on disk or on their way, so it can go."""
        before = time.monotonic() - self._idle_s
        idle = (each for each, used_at in self._loaded.items() if used_at < before)
        return next((each for each in idle if not self._in_use[each]), None)

    def _feed(self) -> None:
        """Hands the engine what it should have now, in one call."""
        prepared: list[tuple[QueuedSample, EngineRequest]] = []
        for queued in self._sample_queue.take():
            self._at_hand = [queued]
            try:
                request = self._patiently(partial(self._prepare, queued))
                prepared.append((queued, request))
            except (EngineUserError, StorageError, ClientError) as error:
                self._refuse(queued, as_request_error(error))
        if prepared:
            self._at_hand = [queued for queued, _ in prepared]
            requests = [request for _, request in prepared]
            refusals = self._supervisor.engine.submit_samples(requests)
            for (queued, _), refusal in zip(prepared, refusals, strict=True):
                if refusal is not None:
                    self._refuse(queued, refusal)
        self._at_hand = []

    def _refuse(self, queued: QueuedSample, error: RequestError) -> None:
        self._release(queued.sample.request_id)
        if self._sample_queue.finish(queued.sample.request_id) is not None:  # else it was cancelled
            self._writer.write([(queued, error)])

    def _prepare(self, queued: QueuedSample) -> EngineRequest:
        """The engine's request; its sampler is loaded and stays until the request ends."""
        sample = queued.sample
        if queued.request is None:
            body = self._db.read(samples.bodies, [sample.request_id])[sample.request_id]
            queued.request = json.decode_request(body, SampleRequest)
        sampler = self._rows.get(sample.sampling_session_id)
        if sampler is None:
            sampler = self._db.read(samplers.get, sample.owner, sample.sampling_session_id)
        if sampler is None or sampler.freed_at is not None:
            raise EngineUserError(
                f"The sampling session {sample.sampling_session_id} is over: its session has "
                "ended, or its weights were dropped because nobody used them. Save the weights "
                "again, under a name if they are to stay.",
                code="sampler-gone",
                field="sampling_session_id",
            )
        if len(self._rows) >= _ROWS_KEPT:
            self._rows.clear()
        self._rows[sample.sampling_session_id] = sampler
        sampler_id = self._ensure(sampler)
        request = sample_request(
            queued.request,
            request_id=sample.request_id,
            owner=sample.owner,
            model=sampler.engine_model,
            sampler_id=sampler_id,
        )
        if sampler_id is not None:
            self._in_use[sampler_id] += 1
            self._sampler_of[sample.request_id] = sampler_id
        return request

    def _ensure(self, sampler: Sampler) -> str | None:
        """The engine's id of the sampler, loaded if it was not; None is the base model."""
        if sampler.checkpoint_id is None and sampler.model_id is None:
            return None
        sampler_id = sampler.checkpoint_id or sampler.sampling_session_id
        if sampler_id in self._loaded:
            self._loaded.move_to_end(sampler_id)
            self._loaded[sampler_id] = time.monotonic()
            return sampler_id
        if sampler.checkpoint_id is not None:
            self._load_checkpoint(sampler.checkpoint_id, sampler)
        else:
            self._load_ephemeral(sampler)
        self._loaded[sampler_id] = time.monotonic()
        self._evict_over_limit()
        return sampler_id

    def _load_checkpoint(self, checkpoint_id: str, sampler: Sampler) -> None:
        checkpoint = self._db.read(checkpoints.get, checkpoint_id)
        if checkpoint is None:
            raise EngineUserError(
                f"The checkpoint {sampler.model_path} was deleted or has expired.",
                code="no-such-checkpoint",
                field="model_path",
                value=sampler.model_path,
            )
        folder = self._folders.checked(checkpoint)
        engine = self._supervisor.engine
        self._evictor.load_with_eviction(
            lambda: engine.load_sampler(checkpoint_id, sampler.engine_model, folder)
        )

    def _load_ephemeral(self, sampler: Sampler) -> None:
        assert sampler.folder is not None
        assert sampler.model_id is not None
        folder = self._folders.sampler(sampler.folder)
        if not folder.exists():
            # Not written before a crash, or on a full disk: the model's replay writes it.
            self._cache.write_samplers(sampler.model_id)
        if not folder.exists():
            raise EngineFailure(
                f"The weights of {sampler.sampling_session_id} are lost.", code="lost-sampler"
            )
        session_id, engine = sampler.sampling_session_id, self._supervisor.engine
        self._evictor.load_with_eviction(
            lambda: engine.load_sampler(session_id, sampler.engine_model, folder)
        )

    def _evict_over_limit(self) -> None:
        while len(self._loaded) > self._max_samplers and self._evict_one():
            pass

    def _evict_one(self) -> bool:
        """Lets the engine forget the sampler that was idle for longest, if there is one."""
        idle = next((each for each in self._loaded if not self._in_use[each]), None)
        if idle is not None:
            self.free(idle)
        return idle is not None

    def _finish(self, results: list[SampleResult]) -> None:
        """Hands on what the engine got done; what it failed at is tried again or given up."""
        done: Finished = []
        failed: list[QueuedSample] = []
        error: RequestError | None = None
        for result in results:
            self._release(result.request_id)
            queued = self._sample_queue.finish(result.request_id)
            if queued is None:
                continue  # cancelled
            if result.error is not None and result.error.kind == "server":
                failed.append(queued)
                error = result.error
            else:
                done.append((queued, result))
        self._writer.write(done)
        if error is not None:
            self._try_again(failed, error)

    def _release(self, request_id: str) -> None:
        sampler_id = self._sampler_of.pop(request_id, None)
        if sampler_id is not None:
            self._in_use[sampler_id] -= 1
            if sampler_id in self._loaded:
                self._loaded[sampler_id] = time.monotonic()

    def _patiently(self, ask_store: Callable[[], T]) -> T:
        return keep_trying(ask_store, lambda: self._supervisor.is_closed)

    def _recover(self, error: Exception) -> None:
        """Everything that ran goes back to the front; who may be to blame is tried apart."""
        self._supervisor.discard(error)
        if self._supervisor.is_closed:
            return  # what ran is in the log and runs at the next start
        interrupted = self._sample_queue.interrupt()
        blamed = self._blamed(self._at_hand or interrupted, error)
        self._at_hand = []
        for queued in reversed(interrupted):
            if queued.sample.request_id not in blamed:
                self._sample_queue.add(queued, first=True)
        suspects = [each for each in interrupted if each.sample.request_id in blamed]
        if suspects:
            self._try_again(suspects, as_server_error(error))

    def _blamed(self, suspects: list[QueuedSample], error: Exception) -> set[str]:
        """The ids of those that may be the cause; for a hang only after several."""
        if isinstance(error, EngineFailure) and error.is_hang:
            for queued in suspects:
                queued.hangs += 1
            suspects = [each for each in suspects if each.hangs >= MAX_HANGS]
        return {each.sample.request_id for each in suspects}

    def _try_again(self, requests: list[QueuedSample], error: RequestError) -> None:
        """Has requests run again that the engine failed at; one that failed twice, and this time
        alone, is given up."""
        for queued in requests:
            queued.failures += 1
        if len(requests) == 1 and requests[0].failures >= _MAX_FAILURES:
            self._writer.write([(requests[0], error)])
        else:
            self._sample_queue.quarantine(requests)

    def _notice_new_engine(self) -> None:
        """What an engine held that died over something else is gone: its requests run again."""
        engine = self._supervisor.engine
        assert engine is not None
        if self._generation != self._supervisor.generation:
            self._generation = self._supervisor.generation
            self._loaded.clear()
            self._in_use.clear()
            self._sampler_of.clear()
            for queued in reversed(self._sample_queue.interrupt()):
                self._sample_queue.add(queued, first=True)
