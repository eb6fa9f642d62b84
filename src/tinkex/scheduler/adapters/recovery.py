"""Brings an adapter into the engine as its last finished operation left it.

It is rebuilt from its last snapshot (weights, moments, pending gradients) and a replay of the
operations logged after it. The same path serves a restart of the server, the loss of an engine and
adapters that were evicted.
"""

from __future__ import annotations

import logging
import time

import msgspec

from tinkex import crashpoints
from tinkex.engine.interface import EngineFailure, EngineUserError, LoraSpec, RequestError
from tinkex.files.errors import StorageError
from tinkex.files.os_errors import damaged
from tinkex.scheduler.adapters.adapter_writer import AdapterWriter
from tinkex.scheduler.adapters.cache import AdapterCache
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.eviction import Evictor
from tinkex.scheduler.adapters.sampler_writer import SamplerWriter
from tinkex.scheduler.adapters.snapshot_writer import SnapshotWriter
from tinkex.scheduler.convert import optim_request, train_request
from tinkex.scheduler.operation_bodies import BodyCache, SaveCommand
from tinkex.scheduler.supervisor import Supervisor
from tinkex.store import Database, models, operations, samplers
from tinkex.store.models import Model
from tinkex.store.operations import Operation
from tinkex.types.requests import OptimStepRequest

__all__ = ["Recovery"]

_logger = logging.getLogger(__name__)

_STATES = {
    "creating": "it is still being created",
    "failed": "its creation failed",
    "unloaded": "it was unloaded",
    "imported": "it is a copied checkpoint, which has no training state",
    "ended": "its session ended, and its training state is no longer kept",
}


class Recovery:
    """Rebuilds adapters in one engine. Used by the slot's thread only."""

    def __init__(
        self,
        supervisor: Supervisor,
        db: Database,
        bodies: BodyCache,
        folders: DataFolders,
        evictor: Evictor,
        cache: AdapterCache,
        writer: AdapterWriter,
        sampler_writer: SamplerWriter,
        snapshots: SnapshotWriter,
    ) -> None:
        self._supervisor = supervisor
        self._db = db
        self._bodies = bodies
        self._folders = folders
        self._evictor = evictor
        self._cache = cache
        self._writer = writer
        self._sampler_writer = sampler_writer
        self._snapshots = snapshots
        self.num_replayed = 0  # operations since the start

    def ensure(self, model_id: str) -> None:
        """Returns when the engine holds the adapter as its last finished operation left it."""
        if model_id in self._cache:
            self._cache.mark_used(model_id)
        else:
            self._rebuild(model_id)

    def write_samplers(self, model_id: str) -> None:
        """Returns when every ephemeral sampler of the model is on disk.

        Raises:
            StorageError: the disk does not take them.
        """
        if model_id not in self._cache:
            self.ensure(model_id)
        self._sampler_writer.wait_for(model_id)
        if self._cache[model_id].lacks_sampler:
            self._rebuild(model_id)  # a replay passes the points where they were taken
        if self._cache[model_id].lacks_sampler:
            raise StorageError("The disk does not take a sampler.", code="disk-failed")

    def _rebuild(self, model_id: str) -> None:
        # Once the row of a pending snapshot is in the store, bodies go that are read below.
        self._snapshots.wait_for(model_id)
        model = self._ready_model(model_id)
        self._supervisor.engine.unload_adapter(model_id)
        self._cache.discard(model_id)
        start = self._load_start(model)
        todo = self._db.read(operations.to_replay, model_id, start)
        if todo:
            _logger.info("Replaying %d operations of %s.", len(todo), model_id)
        self._cache.register(model_id, start)
        crashpoints.passing("replay.begun")
        try:
            for operation in todo:
                began = time.monotonic()
                self._replay(operation)
                self.num_replayed += 1
                self._cache.record_applied(operation, time.monotonic() - began)
                crashpoints.passing("replay.step")
        except BaseException:
            self._cache.discard(model_id)  # a partial replay is no valid state
            raise

    def _ready_model(self, model_id: str) -> Model:
        model = self._db.read(models.get_any, model_id)
        if model is None:
            raise EngineFailure(f"The model {model_id} is not in the store.", code="lost-model")
        if model.state != "ready":
            raise EngineUserError(
                f"The model {model_id} cannot be used: {_STATES[model.state]}.",
                code="model-not-ready",
                field="model_id",
                value=model_id,
            )
        return model

    def _load_start(self, model: Model) -> int:
        """Loads the snapshot or creates the adapter; the number after which the replay starts."""
        model_id, engine = model.model_id, self._supervisor.engine
        if model.snapshot_folder is not None and model.snapshot_seq is not None:
            folder = self._folders.snapshot(model.snapshot_folder)
            if not self._folders.exists(folder):
                raise damaged(f"the run {model_id}", folder.name, "its snapshot is missing")
            if not engine.is_remote:
                self._folders.fetch(folder)
            self._evictor.load_with_eviction(
                lambda: engine.load_adapter(model_id, model.engine_model, folder, "all")
            )
            return model.snapshot_seq
        spec = msgspec.json.decode(model.spec, type=LoraSpec)
        self._evictor.load_with_eviction(
            lambda: engine.create_adapter(model_id, model.engine_model, spec)
        )
        return 0

    def _replay(self, operation: Operation) -> None:
        engine = self._supervisor.engine
        if operation.kind == "forward_backward":
            sent = self._bodies.training(operation.request_id)
            custom_loss = self._bodies.custom_loss(operation.owner, sent)
            request = train_request(sent, custom_loss)
            _require(engine.forward_backward([request])[0], operation)
        elif operation.kind == "optim_step":
            step = self._bodies.command(operation.request_id, OptimStepRequest)
            _require(
                engine.optim_step([optim_request(operation.model_id, step.params)])[0], operation
            )
        elif operation.kind == "save_sampler":
            self._replay_sampler(operation)

    def _replay_sampler(self, operation: Operation) -> None:
        """Writes the ephemeral sampler that was taken here, unless it is on disk or freed."""
        command = self._bodies.command(operation.request_id, SaveCommand)
        if command.sampling_session_id is None:
            return
        sampler = self._db.read(samplers.get, operation.owner, command.sampling_session_id)
        if sampler is None or sampler.freed_at is not None or sampler.folder is None:
            return
        folder = self._folders.sampler(sampler.folder)
        if not self._folders.exists(folder):
            try:
                size_bytes = self._writer.save(operation.model_id, folder, "weights")
            except StorageError as error:
                self._sampler_writer.record_failure(operation.model_id, error)
                return
            self._db.submit(samplers.record_size, sampler.sampling_session_id, size_bytes)


def _require(result: object, operation: Operation) -> None:
    if isinstance(result, RequestError):
        raise EngineFailure(
            f"Replaying {operation.kind} {operation.seq_id} of {operation.model_id} gave an "
            f"error it did not give before: {result.message}",
            code="replay-failed",
        )
