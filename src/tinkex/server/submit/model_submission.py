"""Submissions of a model's operations: numbered, and appended to the model's log.

What becomes of the number of a request that is refused is in `sequence_numbers`.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec
from sqlalchemy import Connection

from tinkex.server.errors import Busy, Gone, LimitExceeded, NotFound
from tinkex.server.services import Services
from tinkex.server.submit.submission import Submission, check_number
from tinkex.store import models, operations, quotas
from tinkex.store.bulk_sql import BatchableWrite
from tinkex.store.models import Model
from tinkex.store.operations import Appended, NewOperation, Operation
from tinkex.types.session import UntypedPromise

__all__ = ["ModelSubmission", "NewModelSubmission", "SeqWindow", "require_model", "seq_window"]

_CONTROL_COST = 256
"""What an operation without tokens costs in the scheduler's accounts."""


class ModelSubmission(Submission[Operation]):
    """One operation of a model.

    `identity` is what makes it the same one when sent again, its body by default. `request` is the
    body decoded, if it is at hand: the scheduler then need not read it again.
    """

    def __init__(
        self,
        owner: str,
        *,
        model_id: str,
        seq_id: int | None,
        kind: str,
        body: bytes,
        cost: int = _CONTROL_COST,
        identity: bytes | None = None,
        request: object | None = None,
    ) -> None:
        if seq_id is not None:
            check_number("seq_id", seq_id)
        self.kind = kind
        self._request = request
        self._new = NewOperation(
            owner=owner,
            model_id=model_id,
            seq_id=-1 if seq_id is None else seq_id,
            kind=kind,
            body=body,
            digest=hashlib.sha256(body if identity is None else identity).digest(),
            cost=max(1, cost),
        )

    @staticmethod
    def check_room(services: Services, owner: str) -> None:
        most = services.config.max_pending_operations_per_owner
        if services.scheduler.pending_operations(owner) >= most:
            raise Busy(f"{most} operations of yours are waiting already.", retry_after_s=2.0)

    async def keep(self, services: Services, key_id: int) -> tuple[Operation, bool]:
        new = msgspec.structs.replace(self._new, key_id=key_id)
        appended = await self._append(services, new)
        return appended.operation, appended.is_new

    def is_scheduled(self, services: Services, row: Operation) -> bool:
        return services.scheduler.has(row)

    async def schedule(self, services: Services, row: Operation) -> None:
        scheduler, work = services.scheduler, (row, self._request, len(self._new.body))
        if scheduler.knows(row.model_id):
            scheduler.enqueue(*work)
        else:  # the first one since the start: the store has the model's place
            await asyncio.to_thread(scheduler.enqueue, *work)

    def promise(self, row: Operation) -> UntypedPromise:
        return UntypedPromise(request_id=row.request_id, model_id=row.model_id)

    async def _append(self, services: Services, new: NewOperation) -> Appended:
        window = seq_window(services, new.model_id)
        write = _append_plainly if window.is_plain(new.seq_id) else _append
        return await services.db.awrite(write, new, window)


class NewModelSubmission(ModelSubmission):
    """The first operation of a model, number 0, which makes it."""

    def __init__(self, model: Model, kind: str, body: bytes) -> None:
        super().__init__(model.owner, model_id=model.model_id, seq_id=0, kind=kind, body=body)
        self._model = model

    async def _append(self, services: Services, new: NewOperation) -> Appended:
        most = services.config.limits.max_models_per_owner
        model = msgspec.structs.replace(self._model, key_id=new.key_id)
        return await services.db.awrite(_insert_model, model, new, most)


async def require_model(services: Services, owner: str, model_id: str) -> Model:
    """The owner's model.

    Raises:
        NotFound: there is none.
    """
    model = await services.db.aread(models.get, owner, model_id)
    if model is None:
        raise _no_model(model_id)
    return model


class SeqWindow(msgspec.Struct, frozen=True):
    """How far ahead of a model's order a number may be: those before it are all waited for."""

    model_id: str
    following: int | None  # the number whose turn it is, if that is known without the store
    most: int

    def is_plain(self, seq_id: int) -> bool:
        """Whether the number is known to be inside the window without a look into the store."""
        if 0 <= seq_id <= self.most:
            return True
        return self.following is not None and 0 <= seq_id <= self.following + self.most

    def ahead(self, conn: Connection, seq_id: int) -> int:
        """By how much the number is too far ahead; not above 0 if it is not."""
        if seq_id <= self.most:
            return 0
        following = self.following
        if following is None:
            following, _ = operations.positions(conn, self.model_id).get(self.model_id, (0, None))
        return seq_id - following - self.most


def seq_window(services: Services, model_id: str) -> SeqWindow:
    """How far ahead of the model's order a number may be now."""
    following = services.scheduler.next_number(model_id)
    return SeqWindow(model_id, following, services.config.limits.max_numbers_ahead)


def _append(conn: Connection, new: NewOperation, window: SeqWindow) -> Appended:
    state = models.submit_state(conn, new.owner, new.model_id)
    if state is None:
        raise _no_model(new.model_id)
    if (ahead := window.ahead(conn, new.seq_id)) > 0:
        raise LimitExceeded(
            f"seq_id={new.seq_id} is {ahead + window.most} ahead of the number whose turn it is "
            f"for this model, above this server's limit of {window.most}.",
            hint="Number a model's requests one by one.",
        )
    if new.seq_id < 0:
        new = msgspec.structs.replace(new, seq_id=operations.free_seq(conn, new.model_id))
    if state.state == "ended" and not operations.is_known(conn, new.model_id, new.seq_id):
        raise Gone(
            f"The run {new.model_id} is over: its session ended, and its training state is no "
            "longer kept.",
            hint="Load one of its checkpoints into a new model.",
            code="run-ended",
        )
    return operations.append(conn, new, trimmed_seq=state.trimmed_seq)


def _append_all(
    conn: Connection, calls: list[tuple[NewOperation, SeqWindow]]
) -> list[Appended] | None:
    return operations.append_all(conn, [new for new, _ in calls])


_append_plainly = BatchableWrite(_append, _append_all)


def _insert_model(conn: Connection, model: Model, new: NewOperation, most: int) -> Appended:
    known = models.get(conn, model.owner, model.model_id)
    if known is None:
        quotas.check_models(conn, model.owner, most)
        models.insert(conn, model)
    return operations.append(conn, new, trimmed_seq=None if known is None else known.trimmed_seq)


def _no_model(model_id: str) -> NotFound:
    return NotFound(f"There is no model {model_id[:200]!r}.", code="unknown-model-id")
