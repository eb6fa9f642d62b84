"""Operations: the requests to each model, in the order of its sequence numbers.

`(model_id, seq_id)` is the identity of an operation: the same pair with the same content is the
same operation, with other content it is refused. Numbers that were refused, or never came, have
rows of their own (`refused`, `skipped`), so that the order is known after a restart too. The log
is written at its end and trimmed at its beginning (see `result_retention`); the model's mark says
how far, so that a number once used is never used again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from sqlalchemy import ColumnElement, Connection, func, select, update
from sqlalchemy.dialects import sqlite

from tinkex.errors import ClientError
from tinkex.store.bulk_sql import BulkStatement, many_rows
from tinkex.store.clock import steady_now
from tinkex.store.request_ids import new_request_id
from tinkex.store.schema import models as model_rows
from tinkex.store.schema import operations
from tinkex.store.upsert import insert_if_absent


class SequenceError(ClientError):
    """A sequence number cannot be used for this request."""

    code = "sequence-conflict"
    status = 422


class OperationDropped(ClientError):
    """410: the number was used so long ago that nothing of the operation is kept."""

    code = "result-dropped"
    status = 410


REPLAYED = frozenset({"forward_backward", "optim_step", "save_sampler"})
"""The kinds whose bodies are needed to rebuild a model; the bodies of others are
dropped when done."""


class NewOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation to append. `digest` identifies its content; `cost` is in tokens."""

    owner: str
    model_id: str
    seq_id: int
    kind: str
    body: bytes
    digest: bytes
    cost: int
    key_id: int | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the log, without its body."""

    request_id: str
    owner: str
    model_id: str
    seq_id: int
    kind: str
    cost: int
    state: str
    created_at: float
    key_id: int | None = None


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """The place of an operation in the log, and whether it is new."""

    operation: Operation
    is_new: bool


_BODIES_AT_ONCE = 50  # rows of one group lie in as many places of the file

_COLUMNS = [operations.c[name] for name in Operation.__struct_fields__]
_STORED = (*Operation.__struct_fields__, "body", "body_hash")
_ADD = insert_if_absent(operations, *_STORED)


def _insert_for_models() -> BulkStatement:
    """Inserts rows, except those whose number is taken or whose model does not accept them."""
    rows = many_rows(len(_STORED)).subquery("new")
    new = dict(zip(_STORED, rows.c, strict=True))
    accepted = (
        select(*rows.c)
        .join(
            model_rows,
            (model_rows.c.model_id == new["model_id"]) & (model_rows.c.owner == new["owner"]),
        )
        .where(
            model_rows.c.state != "ended",
            model_rows.c.trimmed_seq.is_(None) | (model_rows.c.trimmed_seq < new["seq_id"]),
        )
    )
    insert = sqlite.insert(operations).from_select(_STORED, accepted)
    return BulkStatement(insert.on_conflict_do_nothing())


_ADD_ALL = _insert_for_models()


def append(conn: Connection, new: NewOperation, *, trimmed_seq: int | None = None) -> Appended:
    """Appends the operation and returns its place; one already there keeps its request id.

    `trimmed_seq` is the model's mark: numbers up to it that are not in the log were trimmed.

    Raises:
        SequenceError: the number was used for something else, refused, or passed over.
        OperationDropped: the number was used and trimmed.
    """
    if trimmed_seq is not None and 0 <= new.seq_id <= trimmed_seq:
        raise OperationDropped(
            f"seq_id={new.seq_id} of {new.model_id} was used long ago and its result is no "
            "longer kept; it was not run again.",
            hint="Go on with the next number.",
        )
    operation = _insert(conn, new, state="queued")
    if operation is not None:
        return Appended(operation=operation, is_new=True)
    known = _find(conn, new.model_id, new.seq_id)
    assert known is not None, "what could not be inserted is there"
    _check_same(*known, new)
    return Appended(operation=known[0], is_new=False)


def append_all(conn: Connection, new: list[NewOperation]) -> list[Appended] | None:
    """Returns the places of all if all are new and acceptable; else appends none.

    Checks the models itself: their owners, whether they ended, up to where they are trimmed.
    """
    made = [_new_operation(each, "queued") for each in new]
    rows = [
        (*msgspec.structs.astuple(operation), each.body, each.digest)
        for operation, each in zip(made, new, strict=True)
    ]
    if not _ADD_ALL.did_all(conn, rows):
        return None
    return [Appended(operation=operation, is_new=True) for operation in made]


def is_known(conn: Connection, model_id: str, seq_id: int) -> bool:
    """Returns whether the number is in the log or was trimmed from it."""
    mark = select(model_rows.c.trimmed_seq).where(model_rows.c.model_id == model_id)
    trimmed_seq = conn.execute(mark).scalar()
    if trimmed_seq is not None and seq_id <= trimmed_seq:
        return True
    return _find(conn, model_id, seq_id) is not None


def consume(
    conn: Connection, new: NewOperation, state: str, *, trimmed_seq: int | None = None
) -> bool:
    """Uses up the number, so that nothing runs under it; returns whether it was free. `state`:
    refused or skipped."""
    if trimmed_seq is not None and new.seq_id <= trimmed_seq:
        return False
    return _insert(conn, new, state=state) is not None


def nothing(owner: str, model_id: str, seq_id: int) -> NewOperation:
    """Returns the log's entry for a number under which nothing will run."""
    return NewOperation(
        owner=owner, model_id=model_id, seq_id=seq_id, kind="none", body=b"", digest=b"", cost=0
    )


def skip(conn: Connection, missing: list[NewOperation]) -> set[int]:
    """Uses up those of these numbers that are free, and returns them; nothing will
    run under them."""
    return {each.seq_id for each in missing if consume(conn, each, "skipped")}


def get(conn: Connection, owner: str, request_id: str) -> Operation | None:
    """Returns the owner's operation."""
    query = select(*_COLUMNS).where(
        operations.c.request_id == request_id, operations.c.owner == owner
    )
    row = conn.execute(query).first()
    return None if row is None else Operation(**row._mapping)


def find(conn: Connection, model_id: str, seq_id: int) -> Operation | None:
    """Returns the operation with the number; for the scheduler, which serves all owners."""
    known = _find(conn, model_id, seq_id)
    return None if known is None else known[0]


def bodies(conn: Connection, request_ids: Iterable[str]) -> dict[str, bytes]:
    """Returns the bodies of these operations."""
    query = select(operations.c.request_id, operations.c.body).where(
        operations.c.request_id.in_(list(request_ids)), operations.c.body.is_not(None)
    )
    return {row.request_id: bytes(row.body) for row in conn.execute(query)}


def last_without_body(conn: Connection, model_id: str, up_to: int) -> int:
    """Returns the number, up to this one, before which the model has no body to drop."""
    first = select(func.min(operations.c.seq_id)).where(*_bodies_to_drop(model_id, -1, up_to))
    found = conn.execute(first).scalar()
    return up_to if found is None else found - 1


def drop_bodies(conn: Connection, model_id: str, after: int, up_to: int) -> int:
    """Drops some bodies of closed operations after a number; returns the last number passed."""
    some = (
        select(operations.c.seq_id)
        .where(*_bodies_to_drop(model_id, after, up_to))
        .order_by(operations.c.seq_id)
        .limit(_BODIES_AT_ONCE)
    )
    numbers = list(conn.execute(some).scalars())
    if not numbers:
        return up_to
    these = _bodies_to_drop(model_id, after, numbers[-1])
    conn.execute(update(operations).where(*these).values(body=None))
    return numbers[-1] if len(numbers) == _BODIES_AT_ONCE else up_to


def _bodies_to_drop(model_id: str, after: int, up_to: int) -> list[ColumnElement[bool]]:
    return [
        operations.c.model_id == model_id,
        operations.c.seq_id > after,
        operations.c.seq_id <= up_to,
        operations.c.state != "queued",
        operations.c.body.is_not(None),
    ]


def queued(conn: Connection) -> list[Operation]:
    """Returns all unfinished operations, in the order they arrived."""
    query = select(*_COLUMNS).where(operations.c.state == "queued").order_by(operations.c.number)
    return [Operation(**row._mapping) for row in conn.execute(query)]


def to_replay(conn: Connection, model_id: str, after_seq: int) -> list[Operation]:
    """Returns the operations applied to the model after a snapshot, in order."""
    query = (
        select(*_COLUMNS)
        .where(
            operations.c.model_id == model_id,
            operations.c.seq_id > after_seq,
            operations.c.state == "done",
            operations.c.kind.in_(REPLAYED),
        )
        .order_by(operations.c.seq_id)
    )
    return [Operation(**row._mapping) for row in conn.execute(query)]


def positions(conn: Connection, model_id: str | None = None) -> dict[str, tuple[int, set[int]]]:
    """Returns, for each model (or one), the first number not yet passed, and those
    refused after it."""
    passed = (
        select(operations.c.model_id, func.max(operations.c.seq_id))
        .where(operations.c.state.in_(["done", "failed", "skipped"]))
        .group_by(operations.c.model_id)
    )
    refused = select(operations.c.model_id, operations.c.seq_id).where(
        operations.c.state == "refused"
    )
    marks = select(model_rows.c.model_id, model_rows.c.trimmed_seq).where(
        model_rows.c.trimmed_seq.is_not(None)
    )
    if model_id is not None:
        passed = passed.where(operations.c.model_id == model_id)
        refused = refused.where(operations.c.model_id == model_id)
        marks = marks.where(model_rows.c.model_id == model_id)
    found = {name: (last + 1, set[int]()) for name, last in conn.execute(marks)}
    for name, last in conn.execute(passed):
        start, _ = found.get(name, (0, None))
        found[name] = (max(start, last + 1), set())
    for name, seq_id in conn.execute(refused):
        start, ahead = found.setdefault(name, (0, set()))
        if seq_id >= start:
            ahead.add(seq_id)
    return found


def free_seq(conn: Connection, model_id: str) -> int:
    """Returns the number after the last one; for old clients, which do not
    number their requests."""
    last = select(func.max(operations.c.seq_id)).where(operations.c.model_id == model_id)
    mark = select(model_rows.c.trimmed_seq).where(model_rows.c.model_id == model_id)
    return max(0, conn.execute(last).scalar() or 0, conn.execute(mark).scalar() or 0) + 1


def _find(conn: Connection, model_id: str, seq_id: int) -> tuple[Operation, bytes] | None:
    query = select(*_COLUMNS, operations.c.body_hash).where(
        operations.c.model_id == model_id, operations.c.seq_id == seq_id
    )
    row = conn.execute(query).first()
    if row is None:
        return None
    values = dict(row._mapping)
    return Operation(**{k: v for k, v in values.items() if k != "body_hash"}), values["body_hash"]


def _insert(conn: Connection, new: NewOperation, state: str) -> Operation | None:
    """Inserts the new entry; returns None if the number has one already."""
    operation = _new_operation(new, state)
    body = new.body if state == "queued" else None
    row = {**msgspec.structs.asdict(operation), "body": body, "body_hash": new.digest}
    return operation if _ADD.rows(conn, **row) else None


def _new_operation(new: NewOperation, state: str) -> Operation:
    return Operation(
        request_id=new_request_id(new.owner),
        owner=new.owner,
        model_id=new.model_id,
        seq_id=new.seq_id,
        kind=new.kind,
        cost=new.cost,
        state=state,
        created_at=steady_now(),
        key_id=new.key_id,
    )


def _check_same(operation: Operation, digest: bytes, new: NewOperation) -> None:
    if operation.state == "refused":
        raise SequenceError(
            f"seq_id={new.seq_id} of {new.model_id} was refused before and counts as used.",
            hint="Go on with the next number.",
        )
    if operation.state == "skipped":
        raise SequenceError(
            f"seq_id={new.seq_id} of {new.model_id} came too late: later operations did not wait.",
            hint="Send it anew under the next number.",
            code="sequence-passed",
        )
    if operation.kind != new.kind or bytes(digest) != new.digest:
        raise SequenceError(
            f"seq_id={new.seq_id} of {new.model_id} was already used for another request.",
            hint="Give each request of a model its own number.",
        )
