"""Saving, loading and creating adapters: the operations that touch files.

A checkpoint's row is written in the same transaction as its operation's result, after its folder
is complete on disk; what a crash leaves unfinished is invisible and removed at the next start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from sqlalchemy import Connection

from tinkex import crashpoints
from tinkex.engine.interface import EngineUserError, LoraSpec, StateScope
from tinkex.engine.validation import check_same_optimizer
from tinkex.errors import InvalidPathError
from tinkex.files.errors import StorageError
from tinkex.scheduler.adapters.encryption import encrypt_folder
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.operation_bodies import LoadCommand, SaveCommand
from tinkex.store import Database, StoreError, checkpoints, models, samplers
from tinkex.store.checkpoints import Checkpoint
from tinkex.store.clock import steady_now
from tinkex.store.disk_quota import DiskQuota
from tinkex.store.models import Model, Resumed
from tinkex.store.operations import Operation
from tinkex.store.run_series import SeriesHead
from tinkex.store.samplers import SamplerRecord
from tinkex.wire.paths import TinkerPath

_logger = logging.getLogger(__name__)

_SCOPES: dict[str, StateScope] = {
    "weights": "optimizer",
    "sampler_weights": "weights",
    "external_weights": "weights",
}


class Completed(msgspec.Struct, kw_only=True):
    """An operation's answer, what is written with it, and what follows once it is in the store."""

    answer: dict[str, object]
    effects: list[Callable[[Connection], object]] = msgspec.field(default_factory=list)
    afterwards: Callable[[], None] | None = None
    resumed: SeriesHead | None = None  # of the chain of runs that a load has this one go on


class Checkpointer:
    """Runs the operations that create, save and load adapters."""

    def __init__(self, db: Database, adapters: EngineAdapters, disk_quota: DiskQuota) -> None:
        self._db = db
        self._adapters = adapters
        self._supervisor = adapters.supervisor
        self._folders = adapters.folders
        self._evictor = adapters.evictor
        self._disk_quota = disk_quota

    def create(self, operation: Operation) -> Completed:
        """A fresh adapter for a new model."""
        model = self._model(operation)
        engine = self._supervisor.engine
        engine.unload_adapter(model.model_id)
        spec = msgspec.json.decode(model.spec, type=LoraSpec)
        self._evictor.load_with_eviction(
            lambda: engine.create_adapter(model.model_id, model.engine_model, spec)
        )
        self._adapters.cache.register(model.model_id, operation.seq_id)
        return Completed(
            answer={"model_id": model.model_id, "type": "create_model"},
            effects=[lambda conn: models.set_state(conn, model.model_id, "ready")],
            afterwards=lambda: _log_run(model, f"rank {spec.rank}"),
        )

    def save(self, operation: Operation, command: SaveCommand) -> Completed:
        """The adapter on disk under a name."""
        assert command.name is not None
        model = self._model(operation)
        self._adapters.recovery.ensure(model.model_id)
        self._check_disk(model)
        if not command.overwrite:
            self._refuse_existing(model, command)
        checkpoint_id = self._folders.new_id()
        folder = self._folders.checkpoint(checkpoint_id)
        scope = _SCOPES[command.kind]
        if command.age_recipients:
            size = self._save_encrypted(model.model_id, folder, scope, command.age_recipients)
        else:
            size = self._adapters.writer.save(model.model_id, folder, scope)
        digest = self._folders.digest(folder)
        crashpoints.passing("checkpoint.whole")
        checkpoint = _checkpoint(model, command, checkpoint_id, size, digest)
        replaced: list[str | None] = []
        answer: dict[str, object] = {"path": checkpoint.tinker_path, "type": operation.kind}
        if command.kind == "external_weights":
            answer["size_bytes"] = size
        return Completed(
            answer=answer,
            effects=[lambda conn: replaced.append(checkpoints.put_new(conn, checkpoint))],
            afterwards=lambda: self._saved(checkpoint, replaced),
        )

    def _save_encrypted(
        self, model_id: str, folder: Path, scope: StateScope, recipients: list[str]
    ) -> int:
        """Writes the adapter under a name that no row has, and encrypts it into the folder."""
        plain = self._folders.checkpoint(self._folders.new_id())
        try:
            # Not published: weights in the clear do not belong into a depot.
            self._adapters.writer.write(model_id, plain, scope)
            size = encrypt_folder(self._folders.fetch(plain), folder, recipients)
            self._folders.publish(folder)
            return size
        finally:
            self._folders.remove(plain)

    def save_ephemeral(self, operation: Operation, command: SaveCommand) -> Completed:
        """A snapshot to sample from; its weights are written later, while other work runs."""
        assert command.sampling_session_id is not None
        model = self._model(operation)
        self._adapters.recovery.ensure(model.model_id)
        self._check_disk(model)
        session_id, engine = command.sampling_session_id, self._supervisor.engine
        self._evictor.load_with_eviction(lambda: engine.snapshot(model.model_id, session_id))
        self._adapters.samplers.register(session_id)
        sampler = SamplerRecord(
            sampling_session_id=command.sampling_session_id,
            owner=model.owner,
            session_id=model.session_id,
            base_model=model.base_model,
            engine_model=model.engine_model,
            model_id=model.model_id,
            folder=self._folders.new_id(),
            created_at=steady_now(),
        )
        return Completed(
            answer={
                "path": None,
                "sampling_session_id": sampler.sampling_session_id,
                "type": "save_weights_for_sampler",
            },
            effects=[lambda conn: samplers.insert(conn, sampler)],
            afterwards=lambda: self._write_sampler(sampler),
        )

    def load(self, operation: Operation, command: LoadCommand) -> Completed:
        """The adapter as a checkpoint has it; recovery begins here from now on."""
        self._adapters.snapshot_writer.wait_for(operation.model_id)
        model = self._model(operation)
        checkpoint = self._find(command, model)
        if command.optimizer:
            check_same_optimizer(
                model.optimizer_config["type"], checkpoint.optimizer_config["type"]
            )
        scope: StateScope = "optimizer" if command.optimizer else "weights"
        folder = self._adapters.readable(self._folders.checked(checkpoint))
        if model.state != "creating":
            self._adapters.recovery.ensure(model.model_id)
            # Recovery will start after them, so a later replay could not write them.
            self._adapters.recovery.write_samplers(model.model_id)
        engine = self._supervisor.engine
        self._evictor.load_with_eviction(
            lambda: engine.load_adapter(model.model_id, model.engine_model, folder, scope)
        )
        crashpoints.passing("load.done")
        self._adapters.cache.register(model.model_id, operation.seq_id)
        try:
            snapshot = self._adapters.snapshot_writer.write_unrecorded(model.model_id)
        except StorageError:
            self._adapters.snapshot_writer.drop(model.model_id)  # it comes back as it was before
            raise
        effects: list[Callable[[Connection], object]] = []
        resumed = self._resumed(model, checkpoint) if command.optimizer else None
        if resumed is not None:
            effects.append(lambda conn: models.resume(conn, model.model_id, resumed))
        return Completed(
            answer={"path": command.path, "model_id": model.model_id, "type": "load_weights"},
            effects=[
                *effects,
                lambda conn: models.set_spec(conn, model.model_id, checkpoint.spec),
                lambda conn: models.set_state(conn, model.model_id, "ready"),
                # Not before the result: a load that a crash undid must leave the model as it was.
                lambda conn: models.record_snapshot(
                    conn, model.model_id, operation.seq_id, snapshot
                ),
            ],
            afterwards=lambda: self._loaded(model, checkpoint),
            resumed=None if resumed is None else resumed.series,
        )

    def _resumed(self, model: Model, checkpoint: Checkpoint) -> Resumed | None:
        """What the model has of the runs before it, if it was made anew to go on from there."""
        has_begun = model.num_tokens or model.num_steps or model.resumed_from is not None
        if has_begun:
            return None
        return self._db.read(checkpoints.resumed, model.owner, checkpoint)

    def _saved(self, checkpoint: Checkpoint, replaced: list[str | None]) -> None:
        size, owner = checkpoint.size_bytes, checkpoint.owner
        _logger.info(
            "Checkpoint saved: %s (%s bytes, owner %s)", checkpoint.tinker_path, f"{size:,}", owner
        )
        self._remove_replaced(replaced)

    def _loaded(self, model: Model, checkpoint: Checkpoint) -> None:
        if model.state == "creating":
            _log_run(model, f"from {checkpoint.tinker_path}")
        self._adapters.snapshot_writer.record_kept(model)

    def _model(self, operation: Operation) -> Model:
        model = self._db.read(models.get_any, operation.model_id)
        assert model is not None, "an operation's model is in the store"
        return model

    def _check_disk(self, model: Model) -> None:
        """Checked when the save runs: any number of saves may have been queued before it."""
        self._db.read(self._disk_quota.check, model.owner)

    def _refuse_existing(self, model: Model, command: SaveCommand) -> None:
        assert command.name is not None
        if self._db.read(checkpoints.find, model.owner, model.model_id, command.kind, command.name):
            hint = " or pass overwrite=True" if command.kind == "weights" else ""
            raise EngineUserError(
                f"{command.kind}/{command.name} exists already. Choose another name{hint}.",
                code="checkpoint-exists",
                field="path",
                value=command.name,
            )

    def _find(self, command: LoadCommand, model: Model) -> Checkpoint:
        try:
            path = TinkerPath.parse(command.path)
        except InvalidPathError as error:
            raise EngineUserError(str(error), code="invalid-path", field="path") from error
        found = self._db.read(
            checkpoints.find,
            command.as_owner,
            path.run_id,
            path.kind,
            path.name,
            published=True,
        )
        if found is None:
            raise EngineUserError(
                f"There is no checkpoint {command.path}. List yours with GET /checkpoints.",
                code="no-such-checkpoint",
                field="path",
                value=command.path,
            )
        if path.kind == "external_weights" or (command.optimizer and path.kind != "weights"):
            wanted = "training state" if command.optimizer else "weights this server can load"
            raise EngineUserError(
                f"{command.path} holds no {wanted}. Load a path of kind 'weights'.",
                code="wrong-kind",
                field="path",
                value=command.path,
            )
        if not self._is_same_base(found.engine_model, model.engine_model):
            raise EngineUserError(
                f"{command.path} was trained on {found.base_model}, not on {model.base_model}.",
                code="wrong-base-model",
                field="path",
                value=found.base_model,
            )
        return found

    def _is_same_base(self, name: str, other: str) -> bool:
        """Whether adapters of the one fit the other: several names may stand for one base."""
        infos = {info.name: info for info in self._supervisor.engine.models()}
        if name in infos and other in infos:
            return infos[name].is_same_base(infos[other])
        return name == other

    def _remove_replaced(self, replaced: list[str | None]) -> None:
        for checkpoint_id in replaced:
            if checkpoint_id is not None:
                crashpoints.passing("checkpoint.replaced")
                self._folders.remove(self._folders.checkpoint(checkpoint_id))

    def _write_sampler(self, sampler: SamplerRecord) -> None:
        assert sampler.folder is not None
        assert sampler.model_id is not None
        folder: Path = self._folders.sampler(sampler.folder)
        written = self._adapters.sampler_writer.start(sampler.model_id, folder)
        written.add_done_callback(partial(self._note_size, sampler.sampling_session_id, folder))

    def _note_size(self, session_id: str, folder: Path, written: Future[int]) -> None:
        if written.exception() is not None:
            return  # a replay of the model writes it when it is needed
        crashpoints.passing("sampler.whole")
        with suppress(StoreError):  # the server is ending
            noted = self._db.submit(samplers.record_size, session_id, written.result())
            noted.add_done_callback(partial(self._remove_unwanted, folder))

    def _remove_unwanted(self, folder: Path, noted: Future[bool]) -> None:
        """Removes weights that were written after their session had ended."""
        if noted.exception() is None and not noted.result():
            self._folders.remove(folder)


def _log_run(model: Model, how: str) -> None:
    _logger.info(
        "Run created: %s on %s, %s, owner %s", model.model_id, model.engine_model, how, model.owner
    )


def _checkpoint(
    model: Model, command: SaveCommand, checkpoint_id: str, size: int, digest: str | None
) -> Checkpoint:
    assert command.name is not None
    now = time.time()
    return Checkpoint(
        checkpoint_id=checkpoint_id,
        owner=model.owner,
        model_id=model.model_id,
        kind=command.kind,
        name=command.name,
        base_model=model.base_model,
        engine_model=model.engine_model,
        spec=model.spec,
        optimizer_config=model.optimizer_config,
        user_metadata=command.user_metadata,
        size_bytes=size,
        digest=digest,
        created_at=now,
        expires_at=None if command.ttl_seconds is None else now + command.ttl_seconds,
    )
