"""Runs batches of operations on one engine and keeps their results.

A result is published only after it is on disk. If the engine fails it is restarted, adapters are
rebuilt as they were before the batch, and each operation of the batch is retried once, alone; one
that fails again ends with a server error and the rest go on. A batch whose engine hung, or was
cut off, is retried as it was, a few times, since its requests are rarely the cause. Errors of the
store are retried until they pass; errors of files end the one operation that needed them, and the
engine goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from sqlalchemy import Connection

from tinkex import crashpoints
from tinkex.engine.errors import NoWorkerError
from tinkex.engine.interface import (
    EngineError,
    EngineFailure,
    EngineUserError,
    OptimRequest,
    OptimResult,
    RequestError,
    TrainRequest,
    TrainResult,
)
from tinkex.errors import ClientError
from tinkex.files.errors import StorageError
from tinkex.scheduler.adapters.checkpointing import Checkpointer, Completed
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.convert import optim_request, train_output, train_request, trained_batch
from tinkex.scheduler.operation_bodies import BodyCache, LoadCommand, SaveCommand
from tinkex.scheduler.queues.cost_model import FORWARD_KINDS
from tinkex.scheduler.queues.planner import Computed
from tinkex.scheduler.running.outcomes import (
    MAX_OUTSIDE_LOSSES,
    Announce,
    Publish,
    as_request_error,
    as_server_error,
    failure_result,
)
from tinkex.scheduler.running.series_keeper import SeriesKeeper
from tinkex.scheduler.running.store_retries import StoreRetries
from tinkex.scheduler.work_counters import EngineBatch, WorkCounters
from tinkex.store import Database, models, operation_outcomes
from tinkex.store.operation_outcomes import OperationOutcome, SeriesChange
from tinkex.store.operations import Operation
from tinkex.store.results import Result
from tinkex.types.requests import OptimStepRequest
from tinkex.wire import protobuf

T = TypeVar("T")

_MAX_LOAD_S = 1.0
"""Maximum charge to a batch for loading its adapters: what takes longer is crash recovery."""

_MAX_KEEP_S = 1.0
"""Maximum counted for storing a batch's results: what takes longer is a failing disk."""

Effect = Callable[[Connection], object]


class _Times(NamedTuple):
    """When a batch was requested, was given to the engine, and came back."""

    asked_at: float
    began_at: float
    done_at: float


class Executor:
    """Turns batches of operations into results. Used by the slot's thread only."""

    def __init__(
        self,
        db: Database,
        adapters: EngineAdapters,
        checkpointer: Checkpointer,
        bodies: BodyCache,
        publish: Publish,
        announce: Announce,
        series: SeriesKeeper,
        counters: WorkCounters,
    ) -> None:
        self._db = db
        self._series = series
        self._supervisor = adapters.supervisor
        self._cache = adapters.cache
        self._recovery = adapters.recovery
        self._checkpointer = checkpointer
        self._bodies = bodies
        self._publish = publish
        self._announce = announce
        self._counters = counters
        self._store_retries = StoreRetries(lambda: self._supervisor.is_closed)
        self._outside_losses = 0  # of the engine during the running batch
        self._computed: list[Computed] = []  # of that batch
        self._finished: set[str] = set()  # requests of that batch

    def run(
        self, batch: list[Operation], *, may_give_back: bool = False
    ) -> tuple[list[Computed], list[Operation]]:
        """Runs the batch to its end: every operation in it has a result when this returns.

        Returns the engine calls that succeeded, and the operations that have no result after all:
        with `may_give_back` those whose worker was lost and does not come back soon. Attempts that
        were lost with an engine, and the start of another, are not charged to the batch.
        """
        self._outside_losses, self._computed, self._finished = 0, [], set()
        self._announce(batch, "running")
        self._supervisor.is_patient = not may_give_back
        try:
            self._run_to_end(batch)
        except NoWorkerError:
            unfinished = [each for each in batch if each.request_id not in self._finished]
            return self._computed, unfinished
        finally:
            self._supervisor.is_patient = True
        return self._computed, []

    def _run_to_end(self, batch: list[Operation]) -> None:
        try:
            self._run_through_losses(batch)
        except NoWorkerError:
            raise
        except Exception as error:
            self._supervisor.discard(error)
            for operation in batch:
                if not self._supervisor.is_closed:  # else it runs at the next start
                    self._run_again(operation)

    def _run_again(self, operation: Operation) -> None:
        try:
            self._run_through_losses([operation])
        except NoWorkerError:
            raise
        except Exception as error:
            self._supervisor.discard(error)
            if not self._supervisor.is_closed:
                self._finish([_failed(operation, as_server_error(error))])

    def _run_through_losses(self, batch: list[Operation]) -> None:
        while True:
            try:
                return self._run(batch)
            except EngineFailure as error:
                self._outside_losses += error.is_from_outside
                is_forgiven = error.is_from_outside and self._outside_losses < MAX_OUTSIDE_LOSSES
                if not is_forgiven or self._supervisor.is_closed:
                    raise
                self._supervisor.discard(error)

    def _run(self, batch: list[Operation]) -> None:
        kind = batch[0].kind
        if kind in FORWARD_KINDS:
            self._forward(batch)
        elif kind == "optim_step":
            self._step(batch)
        else:
            for operation in batch:
                self._single(operation)

    def _forward(self, batch: list[Operation]) -> None:
        asked_at = time.monotonic()
        prepared, outcomes = self._prepare(batch, self._train_request)
        results: list[TrainResult | RequestError] = []
        began = time.monotonic()
        if prepared:
            requests = [request for _, request in prepared]
            crashpoints.passing("execute.before", batch[0].kind)
            results = self._supervisor.engine.forward_backward(requests)
            crashpoints.passing("execute.after", batch[0].kind)
        done_at = time.monotonic()
        self._count(prepared, began, done_at)
        engine_s = done_at - began
        seconds = engine_s / max(1, len(prepared))
        parts = [_work(each[1], done) for each, done in zip(prepared, results, strict=True)]
        for (operation, request), result, part in zip(prepared, results, parts, strict=True):
            if isinstance(result, RequestError):
                outcomes.append(_failed(operation, result))
                continue
            if request.backward:
                self._cache.record_applied(operation, seconds)
            body = protobuf.encode_forward_backward_output(train_output(result))
            outcomes.append(
                OperationOutcome(
                    operation=operation,
                    result=Result(encoding="proto", body=body),
                    num_tokens=result.num_tokens,
                    engine_s=engine_s * part / max(1, sum(parts)),
                    trained=trained_batch(request, result) if request.backward else None,
                )
            )
        self._finish(outcomes)
        self._note(prepared, results, _Times(asked_at, began, done_at))

    def _step(self, batch: list[Operation]) -> None:
        asked_at = time.monotonic()
        prepared, outcomes = self._prepare(batch, self._optim_request)
        results: list[OptimResult | RequestError] = []
        began = time.monotonic()
        if prepared:
            crashpoints.passing("execute.before", "optim_step")
            results = self._supervisor.engine.optim_step([request for _, request in prepared])
            crashpoints.passing("execute.after", "optim_step")
        done_at = time.monotonic()
        self._count(prepared, began, done_at)
        seconds = (done_at - began) / max(1, len(prepared))
        for (operation, request), result in zip(prepared, results, strict=True):
            if isinstance(result, RequestError):
                outcomes.append(_failed(operation, result))
                continue
            self._cache.record_applied(operation, seconds)
            answer = {"metrics": result.metrics, "type": "optim_step"}
            outcomes.append(
                OperationOutcome(
                    operation=operation,
                    result=_json_result(answer),
                    num_steps=1,
                    engine_s=seconds,
                    step_metrics={**result.metrics, "learning_rate": request.params.learning_rate},
                )
            )
        self._finish(outcomes)
        self._note(prepared, results, _Times(asked_at, began, done_at))

    def _single(self, operation: Operation) -> None:
        began = time.monotonic()
        crashpoints.passing("execute.before", operation.kind)
        try:
            done = self._store_retries.run(partial(self._dispatch, operation))
        except (EngineUserError, StorageError, ClientError) as error:
            failed = _failed(operation, as_request_error(error))
            self._finish([failed], _on_failure(operation))
            return
        crashpoints.passing("execute.after", operation.kind)
        seconds = time.monotonic() - began
        self._counters.count_batch(EngineBatch([operation], began, began + seconds))
        self._computed.append(Computed(operations=[operation], busy_seconds=seconds))
        self._cache.record_applied(operation, seconds)
        outcome = OperationOutcome(
            operation=operation,
            result=_json_result(done.answer),
            engine_s=seconds,
            resumed=done.resumed,
        )
        self._finish([outcome], done.effects)
        if done.afterwards is not None:
            self._follow_up(done.afterwards)

    def _note(
        self,
        prepared: Sequence[tuple[Operation, object]],
        results: Sequence[object],
        times: _Times,
    ) -> None:
        """Records a call of the engine whose results have just been stored."""
        if not prepared:
            return
        computed = Computed(
            operations=[operation for operation, _ in prepared],
            busy_seconds=times.done_at - times.began_at,
            load_s=min(times.began_at - times.asked_at, _MAX_LOAD_S),
            keep_s=min(time.monotonic() - times.done_at, _MAX_KEEP_S),
            is_typical=not any(isinstance(each, RequestError) for each in results),
        )
        self._computed.append(computed)

    def _count(
        self, prepared: Sequence[tuple[Operation, object]], began_at: float, done_at: float
    ) -> None:
        if prepared:
            batch = EngineBatch([operation for operation, _ in prepared], began_at, done_at)
            self._counters.count_batch(batch)

    def _follow_up(self, afterwards: Callable[[], None]) -> None:
        """Runs what follows an answered operation; recovery repairs what fails."""
        try:
            afterwards()
        except (EngineError, OSError) as error:
            self._supervisor.discard(error)

    def _dispatch(self, operation: Operation) -> Completed:
        if operation.kind == "create_model":
            return self._checkpointer.create(operation)
        if operation.kind == "load_weights":
            load = self._bodies.command(operation.request_id, LoadCommand)
            return self._checkpointer.load(operation, load)
        save = self._bodies.command(operation.request_id, SaveCommand)
        if save.name is None:
            return self._checkpointer.save_ephemeral(operation, save)
        return self._checkpointer.save(operation, save)

    def _prepare(
        self, batch: list[Operation], decode: Callable[[Operation], T]
    ) -> tuple[list[tuple[Operation, T]], list[OperationOutcome]]:
        """Requests ready to run, and the outcomes of those that cannot."""
        prepared, failed = [], []
        for operation in batch:
            try:
                request = self._store_retries.run(partial(self._ready, operation, decode))
                prepared.append((operation, request))
            except (EngineUserError, StorageError, ClientError) as error:
                failed.append(_failed(operation, as_request_error(error)))
        return prepared, failed

    def _ready(self, operation: Operation, decode: Callable[[Operation], T]) -> T:
        """The request, with its adapter in the engine."""
        request = decode(operation)
        self._recovery.ensure(operation.model_id)
        return request

    def _train_request(self, operation: Operation) -> TrainRequest:
        request = self._bodies.training(operation.request_id)
        return train_request(request, self._bodies.custom_loss(operation.owner, request))

    def _optim_request(self, operation: Operation) -> OptimRequest:
        step = self._bodies.command(operation.request_id, OptimStepRequest)
        return optim_request(operation.model_id, step.params)

    def _finish(
        self, outcomes: list[OperationOutcome], effects: list[Effect] | None = None
    ) -> None:
        changes = self._store_retries.run(lambda: self._series.changes(outcomes))
        self._store_retries.run(lambda: self._db.write(_keep, outcomes, changes, effects or []))
        self._series.accept(changes)
        self._finished |= {each.operation.request_id for each in outcomes}
        kind = outcomes[0].operation.kind
        crashpoints.passing("result.kept", kind)
        self._counters.count_operations(outcomes)
        self._publish({each.operation.request_id: each.result for each in outcomes}, set())
        crashpoints.passing("result.published", kind)
        failed = [each.operation for each in outcomes if each.is_failed]
        self._announce([each.operation for each in outcomes if not each.is_failed], "done")
        if failed:
            self._announce(failed, "failed")


def _keep(
    conn: Connection,
    outcomes: list[OperationOutcome],
    changes: dict[str, SeriesChange],
    effects: list[Effect],
) -> None:
    operation_outcomes.finish(conn, outcomes, changes)
    for effect in effects:
        effect(conn)


def _on_failure(operation: Operation) -> list[Effect]:
    if operation.seq_id != 0:
        return []
    return [lambda conn: models.set_state(conn, operation.model_id, "failed")]


def _work(request: TrainRequest, result: TrainResult | RequestError) -> int:
    """The request's part of its batch: tokens, twice for a backward pass."""
    if isinstance(result, RequestError):
        return 0
    return result.num_tokens * (2 if request.backward else 1)


def _failed(operation: Operation, error: RequestError) -> OperationOutcome:
    return OperationOutcome(operation=operation, result=failure_result(error))


def _json_result(answer: Mapping[str, object]) -> Result:
    return Result(encoding="json", body=msgspec.json.encode(answer))
