"""Submitting operations: checked, kept in the log, scheduled, answered with a request id.

A submit never waits for compute or for another submit. What becomes of the number of a request
that is refused is in `numbered`.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec
from sqlalchemy import Connection
from starlette.responses import Response

from tinkex import crashpoints
from tinkex.server.errors import (
    Busy,
    Gone,
    LimitExceeded,
    NotFound,
    Unprocessable,
    json_response,
)
from tinkex.server.services import Services
from tinkex.store import models, operations
from tinkex.store.bulk_sql import BatchableWrite
from tinkex.store.models import Model
from tinkex.store.operations import Appended, NewOperation
from tinkex.types.session import UntypedPromise

CONTROL_COST = 256
"""What an operation without tokens costs in the scheduler's accounts."""


async def submit(
    parts: Services,
    owner: str,
    *,
    model_id: str,
    seq_id: int | None,
    kind: str,
    body: bytes,
    cost: int = CONTROL_COST,
    identity: bytes | None = None,
    request: object | None = None,
) -> Response:
    """The promise for an operation. `identity` is what makes it the same one when sent again.

    `request` is the body decoded, if it is at hand: the scheduler then need not read it again.
    """
    parts.check_disk()
    check_room(parts, owner)
    if seq_id is not None:
        check_number("seq_id", seq_id)
    new = NewOperation(
        owner=owner,
        model_id=model_id,
        seq_id=-1 if seq_id is None else seq_id,
        kind=kind,
        body=body,
        digest=hashlib.sha256(body if identity is None else identity).digest(),
        cost=max(1, cost),
    )
    crashpoints.passing("submit.before", kind)
    window = seq_window(parts, model_id)
    write = _append_plainly if window.is_plain(new.seq_id) else _append
    appended = await parts.db.awrite(write, new, window)
    await schedule(parts, appended, request, len(body))
    return promise(appended)


async def schedule(
    parts: Services,
    appended: Appended,
    request: object | None = None,
    size_bytes: int = 0,
) -> None:
    """Hands an operation to the scheduler, unless it has it.

    One that came before may be in the log and nowhere else: the store had kept it and then failed,
    or its client disconnected at that moment.
    """
    operation, scheduler = appended.operation, parts.scheduler
    if operation.state != "queued" or (not appended.is_new and scheduler.has(operation)):
        return
    crashpoints.passing("submit.kept", operation.kind)
    parts.waiters.expect(operation.request_id, operation.owner, operation.kind)
    if scheduler.knows(operation.model_id):
        scheduler.enqueue(operation, request, size_bytes)
    else:  # the first one since the start: the store is asked for the model's place
        await asyncio.to_thread(scheduler.enqueue, operation, request, size_bytes)
    crashpoints.passing("submit.scheduled", operation.kind)


def promise(appended: Appended) -> Response:
    """The answer that names the request to ask for."""
    operation = appended.operation
    return json_response(
        UntypedPromise(request_id=operation.request_id, model_id=operation.model_id)
    )


def check_number(name: str, value: int) -> None:
    """Refuses a counter that is negative or does not fit 31 bits.

    Raises:
        Unprocessable: it does not.
    """
    if not 0 <= value < 2**31:
        raise Unprocessable(f"{name}={value} must be 0 or more and fit 31 bits.")


def check_room(parts: Services, owner: str) -> None:
    """Refuses work above the tenant's bound.

    Raises:
        Busy: too many operations of this tenant wait already.
    """
    most = parts.config.max_pending_operations_per_owner
    if parts.scheduler.pending_operations(owner) >= most:
        raise Busy(f"{most} operations of yours are waiting already.", retry_after_s=2.0)


async def require_model(parts: Services, owner: str, model_id: str) -> Model:
    """The owner's model.

    Raises:
        NotFound: there is none.
    """
    model = await parts.db.aread(models.get, owner, model_id)
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


def seq_window(parts: Services, model_id: str) -> SeqWindow:
    """How far ahead of the model's order a number may be now."""
    following = parts.scheduler.next_number(model_id)
    return SeqWindow(model_id, following, parts.config.limits.max_numbers_ahead)


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


def _no_model(model_id: str) -> NotFound:
    return NotFound(f"There is no model {model_id[:200]!r}.", code="unknown-model-id")
