"""Results, in the wire's own encoding, or the typed error a request ended with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
from sqlalchemy import Connection, literal, select

from tinkex.store.bulk_sql import insert_rows
from tinkex.store.clock import steady_now
from tinkex.store.compiled_sql import Prepared
from tinkex.store.schema import custom_losses, operations, results, samples

Encoding = Literal["json", "proto", "error"]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a finished request. An error's body is the JSON the client is shown."""

    encoding: Encoding
    body: bytes


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The stored kind of a request, and its result once there is one.

    A request that is finished and has no result had one that was dropped for its age.
    """

    kind: str
    is_finished: bool
    result: Result | None


def error_result(message: str, *, category: str, code: str = "", hint: str = "") -> Result:
    """Returns the result of a request that failed; `category`: whether the user or the
    server caused it."""
    text = f"{message} {hint}".strip()
    fields = {"error": text, "category": category, "code": code}
    return Result(encoding="error", body=msgspec.json.encode(fields))


class OwnedRequest(Protocol):
    """A request that a result belongs to."""

    @property
    def request_id(self) -> str: ...
    @property
    def owner(self) -> str: ...


_STORED = ("request_id", "owner", "encoding", "body", "size_bytes", "created_at")
_KEEP = Prepared(results.insert())
_KEEP_ALL = insert_rows(results, *_STORED)


def keep(conn: Connection, owner: str, request_id: str, result: Result) -> None:
    """Stores the result of the owner's request."""
    _KEEP.count(
        conn,
        request_id=request_id,
        owner=owner,
        encoding=result.encoding,
        body=result.body,
        size_bytes=len(result.body),
        created_at=steady_now(),
    )


def keep_all(conn: Connection, outcomes: Sequence[tuple[OwnedRequest, Result]]) -> None:
    """Stores the results of several requests."""
    now = steady_now()
    rows = [
        (request.request_id, request.owner, result.encoding, result.body, len(result.body), now)
        for request, result in outcomes
    ]
    if not _KEEP_ALL.did_all(conn, rows):
        for request, result in outcomes:
            keep(conn, request.owner, request.request_id, result)


def find(conn: Connection, owner: str, request_id: str) -> Found | None:
    """Returns the stored state of the owner's request; None if there is no such request."""
    row = conn.execute(
        select(results.c.encoding, results.c.body).where(
            results.c.request_id == request_id, results.c.owner == owner
        )
    ).first()
    result = None if row is None else Result(encoding=row.encoding, body=bytes(row.body))
    for table, kind in ((operations, operations.c.kind), (samples, literal("sample"))):
        known = conn.execute(
            select(kind.label("kind"), table.c.state).where(
                table.c.request_id == request_id, table.c.owner == owner
            )
        ).first()
        if known is not None:
            return Found(kind=known.kind, is_finished=known.state != "queued", result=result)
    return _find_custom_loss(conn, owner, request_id)


def _find_custom_loss(conn: Connection, owner: str, request_id: str) -> Found | None:
    """Finds an uploaded loss: its row is its result."""
    query = select(custom_losses.c.loss_id).where(
        custom_losses.c.request_id == request_id, custom_losses.c.owner == owner
    )
    loss_id = conn.execute(query).scalar()
    if loss_id is None:
        return None
    answer = msgspec.json.encode({"loss_id": loss_id, "type": "create_custom_loss"})
    result = Result(encoding="json", body=answer)
    return Found(kind="create_custom_loss", is_finished=True, result=result)
