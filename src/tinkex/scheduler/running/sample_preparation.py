"""Turns a queued sample into the engine's request, with its sampler loaded."""

from __future__ import annotations

import time

from tinkex.engine.interface import EngineFailure, EngineUserError
from tinkex.engine.interface import SampleRequest as EngineRequest
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.convert import sample_request
from tinkex.scheduler.placement import Placement
from tinkex.scheduler.queues.sample_queue import SampleQueue
from tinkex.scheduler.queues.slot_samples import QueuedSample
from tinkex.store import Database, checkpoints, samplers, samples
from tinkex.store.samplers import SamplerRecord
from tinkex.store.samples import Sample
from tinkex.types.requests import SampleRequest
from tinkex.wire import json

__all__ = ["OtherSlotError", "SamplePreparation"]

_MAX_ROWS = 4096

_NO_TRAINER_S = 1.0
"""How long a sample waits whose weights have to be written, while no worker can do that."""


class OtherSlotError(Exception):
    """The sample has to go to another slot: to the one that can write its weights, which is the
    model's, or to any that samples."""

    def __init__(self, slot_id: int | None, wait_s: float = 0.0) -> None:
        super().__init__(f"the sample goes to slot {'any' if slot_id is None else slot_id}")
        self.slot_id = slot_id
        self.wait_s = wait_s


class SamplePreparation:
    """Prepares samples for one engine. Used by the slot's thread only."""

    def __init__(
        self,
        slot_id: int,
        db: Database,
        adapters: EngineAdapters,
        placement: Placement,
        sample_queue: SampleQueue,
    ) -> None:
        self._slot_id = slot_id
        self._placement = placement
        self._sample_queue = sample_queue
        self._db = db
        self._adapters = adapters
        self._rows: dict[
            str, SamplerRecord
        ] = {}  # by sampling session; a row changes only when freed

    def prepare(self, queued: QueuedSample) -> EngineRequest:
        """The engine's request; its sampler is loaded and stays until the request is released.

        Raises:
            OtherSlotError: it has to run on another slot.
            EngineUserError: its sampler is gone, or does not fit.
        """
        sample = queued.sample
        if queued.request is None:
            body = self._db.read(samples.bodies, [sample.request_id])[sample.request_id]
            queued.request = json.decode_request(body, SampleRequest)
        sampler = self._sampler(sample)
        sampler_id = self._ensure(sampler)
        request = sample_request(
            queued.request,
            request_id=sample.request_id,
            owner=sample.owner,
            model=sampler.engine_model,
            sampler_id=sampler_id,
        )
        self._sample_queue.note_loaded(
            sample.sampling_session_id, self._slot_id, is_base=sampler_id is None
        )
        if sampler_id is not None:
            self._adapters.samplers.acquire(sampler_id, sample.request_id)
        return request

    def free(self, sampler_id: str) -> None:
        """Unloads a sampler and reads its row anew at its next use."""
        self._rows.pop(sampler_id, None)
        self._sample_queue.note_unloaded(sampler_id, self._slot_id)
        self._adapters.samplers.unload(sampler_id)

    def _sampler(self, sample: Sample) -> SamplerRecord:
        sampler = self._rows.get(sample.sampling_session_id)
        if sampler is None:
            sampler = self._db.read(samplers.get, sample.owner, sample.sampling_session_id)
        if sampler is None or sampler.freed_at is not None:
            raise EngineUserError(
                f"The sampling session {sample.sampling_session_id} can no longer be "
                "sampled from: its client session has ended, or its weights were unused for longer "
                "than they are kept. Save them again, under a name if they are to stay.",
                code="sampler-gone",
                field="sampling_session_id",
            )
        if len(self._rows) >= _MAX_ROWS:
            self._rows.clear()
        self._rows[sample.sampling_session_id] = sampler
        return sampler

    def _ensure(self, sampler: SamplerRecord) -> str | None:
        """The engine's id of the sampler, loaded if it was not; None is the base model."""
        if sampler.checkpoint_id is None and sampler.model_id is None:
            return None
        sampler_id = sampler.checkpoint_id or sampler.sampling_session_id
        if sampler_id in self._adapters.samplers:
            self._adapters.samplers.mark_used(sampler_id)
            return sampler_id
        if sampler.checkpoint_id is not None:
            self._load_checkpoint(sampler.checkpoint_id, sampler)
        else:
            self._load_ephemeral(sampler)
        self._adapters.samplers.register(sampler_id)
        return sampler_id

    def _load_checkpoint(self, checkpoint_id: str, sampler: SamplerRecord) -> None:
        checkpoint = self._db.read(checkpoints.get, checkpoint_id)
        if checkpoint is None:
            raise EngineUserError(
                f"The checkpoint {sampler.model_path} was deleted or has expired.",
                code="no-such-checkpoint",
                field="model_path",
                value=sampler.model_path,
            )
        folder = self._adapters.readable(self._adapters.folders.checked(checkpoint))
        engine = self._adapters.supervisor.engine
        self._adapters.evictor.load_with_eviction(
            lambda: engine.load_sampler(checkpoint_id, sampler.engine_model, folder)
        )

    def _load_ephemeral(self, sampler: SamplerRecord) -> None:
        assert sampler.folder is not None
        assert sampler.model_id is not None
        folder = self._adapters.folders.sampler(sampler.folder)
        folders = self._adapters.folders
        if not folders.exists(folder):
            # Not written before a crash, or on a full disk: the model's replay writes it, which
            # only the model's own slot may do.
            slot_id = self._placement.assign(sampler.model_id, time.monotonic())
            if slot_id != self._slot_id:
                is_up = slot_id is not None and self._placement.loads[slot_id].is_up()
                raise OtherSlotError(slot_id if is_up else None, wait_s=_NO_TRAINER_S)
            self._adapters.recovery.write_samplers(sampler.model_id)
            if "sample" not in self._placement.loads[self._slot_id].roles:
                raise OtherSlotError(None)
        if not folders.exists(folder):
            raise EngineFailure(
                f"The weights of {sampler.sampling_session_id} are lost.", code="lost-sampler"
            )
        self._adapters.readable(folder)
        session_id, engine = sampler.sampling_session_id, self._adapters.supervisor.engine
        self._adapters.evictor.load_with_eviction(
            lambda: engine.load_sampler(session_id, sampler.engine_model, folder)
        )
