"""Checkpoints: saved weights that can be listed, loaded, published and deleted by name.

A row appears only after its folder is whole on disk; the folder is named by our own id.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, delete, func, or_, select, update

from tinkex.store import models, run_points
from tinkex.store.clock import not_before
from tinkex.store.models import Resumed
from tinkex.store.run_series import SeriesHead
from tinkex.store.schema import checkpoints
from tinkex.store.schema import models as model_rows

_EXPIRED_AT_ONCE = 100


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint as stored."""

    checkpoint_id: str
    owner: str
    model_id: str
    kind: str
    name: str
    base_model: str
    engine_model: str
    spec: str
    optimizer_config: dict[str, Any]
    user_metadata: dict[str, Any] | None
    size_bytes: int
    digest: str | None = None
    is_public: bool = False
    created_at: float
    expires_at: float | None = None
    at_point: int | None = None
    at_step: int | None = None
    at_tokens: int | None = None

    @property
    def tinker_path(self) -> str:
        """The path by which clients name it."""
        return f"tinker://{self.model_id}/{self.kind}/{self.name}"


def put(conn: Connection, checkpoint: Checkpoint) -> str | None:
    """Adds the checkpoint; returns the id of another of the same name that it replaced."""
    where = _named(checkpoint.model_id, checkpoint.kind, checkpoint.name)
    replaced = conn.execute(select(checkpoints.c.checkpoint_id).where(*where)).scalar()
    if replaced is not None:
        conn.execute(delete(checkpoints).where(*where))
    values = msgspec.structs.asdict(checkpoint)
    values["optimizer_config"] = _dump(checkpoint.optimizer_config)
    if checkpoint.user_metadata is not None:
        values["user_metadata"] = _dump(checkpoint.user_metadata)
    conn.execute(checkpoints.insert().values(**values))
    # It may have been stored already, with its answer lost.
    return None if replaced == checkpoint.checkpoint_id else replaced


def put_new(conn: Connection, checkpoint: Checkpoint) -> str | None:
    """Like `put`, for a checkpoint that its run has just saved: records the run's progress."""
    model_id = checkpoint.model_id
    head = models.series_head(conn, model_id)
    return put(
        conn,
        msgspec.structs.replace(
            checkpoint,
            at_point=run_points.last_number(conn, model_id),
            at_step=head.step,
            at_tokens=head.tokens,
        ),
    )


def resumed(conn: Connection, owner: str, checkpoint: Checkpoint) -> Resumed:
    """Returns the chain that an owner's run has if it is made from this checkpoint."""
    before = models.get(conn, owner, checkpoint.model_id)
    return Resumed(
        resumed_from=checkpoint.model_id,
        root_id=None if before is None else before.root,
        first_point=checkpoint.at_point or 0,
        series=SeriesHead(step=checkpoint.at_step or 0, tokens=checkpoint.at_tokens or 0),
        name=None if before is None else before.name,
        tags={} if before is None else before.tags or {},
    )


def find(
    conn: Connection, owner: str, model_id: str, kind: str, name: str, *, published: bool = False
) -> Checkpoint | None:
    """Returns the owner's checkpoint of that name, or with `published` a public one
    of any owner."""
    mine: ColumnElement[bool] = checkpoints.c.owner == owner
    if published:
        mine = or_(mine, checkpoints.c.is_public)
    query = select(checkpoints).where(*_named(model_id, kind, name), mine, _alive())
    row = conn.execute(query).first()
    return None if row is None else _to_checkpoint(row)


def get(conn: Connection, checkpoint_id: str) -> Checkpoint | None:
    """Returns the checkpoint with this id, of any owner; the caller has checked access to it."""
    query = select(checkpoints).where(checkpoints.c.checkpoint_id == checkpoint_id, _alive())
    row = conn.execute(query).first()
    return None if row is None else _to_checkpoint(row)


def list_of_run(
    conn: Connection, owner: str, model_id: str, *, without: frozenset[str] = frozenset()
) -> list[Checkpoint]:
    """Returns the run's checkpoints, oldest first, except the kinds in `without`."""
    query = (
        select(checkpoints)
        .where(checkpoints.c.model_id == model_id, checkpoints.c.owner == owner, _alive())
        .where(checkpoints.c.kind.not_in(without))
        .order_by(checkpoints.c.created_at)
    )
    return [_to_checkpoint(row) for row in conn.execute(query)]


def list_named(conn: Connection, owner: str, kind: str, name: str) -> list[Checkpoint]:
    """Returns the owner's checkpoints of this kind and name, of any run, newest first."""
    query = (
        select(checkpoints)
        .where(checkpoints.c.owner == owner, checkpoints.c.kind == kind)
        .where(checkpoints.c.name == name, _alive())
        .order_by(checkpoints.c.created_at.desc())
    )
    return [_to_checkpoint(row) for row in conn.execute(query)]


def list_of_owner(
    conn: Connection, owner: str, *, limit: int, offset: int, without: frozenset[str] = frozenset()
) -> tuple[list[Checkpoint], int]:
    """Returns the owner's checkpoints, newest first, and their number; not
    the kinds in `without`."""
    where = (checkpoints.c.owner == owner, _alive(), checkpoints.c.kind.not_in(without))
    query = (
        select(checkpoints)
        .where(*where)
        .order_by(checkpoints.c.created_at.desc(), checkpoints.c.checkpoint_id)
        .limit(limit)
        .offset(offset)
    )
    total = conn.execute(select(func.count()).select_from(checkpoints).where(*where)).scalar_one()
    return [_to_checkpoint(row) for row in conn.execute(query)], total


def totals_of_sessions(
    conn: Connection, owner: str, session_ids: list[str]
) -> dict[str, tuple[int, int]]:
    """Returns the number and bytes of the checkpoints of each session's runs; no
    session is left out."""
    query = (
        select(model_rows.c.session_id, func.count(), func.sum(checkpoints.c.size_bytes))
        .join(model_rows, model_rows.c.model_id == checkpoints.c.model_id)
        .where(checkpoints.c.owner == owner, model_rows.c.session_id.in_(session_ids), _alive())
        .group_by(model_rows.c.session_id)
    )
    return {session_id: (count, int(size)) for session_id, count, size in conn.execute(query)}


def delete_one(conn: Connection, owner: str, checkpoint_id: str) -> bool:
    """Deletes the checkpoint; returns whether the owner had it."""
    result = conn.execute(
        delete(checkpoints).where(
            checkpoints.c.checkpoint_id == checkpoint_id, checkpoints.c.owner == owner
        )
    )
    return result.rowcount > 0


def set_public(conn: Connection, owner: str, checkpoint_id: str, is_public: bool) -> None:
    """Publishes the checkpoint, or makes it private again."""
    _update(conn, owner, checkpoint_id, is_public=is_public)


def set_expiry(conn: Connection, owner: str, checkpoint_id: str, at: float | None) -> None:
    """Sets when the checkpoint expires; None keeps it for good."""
    _update(conn, owner, checkpoint_id, expires_at=at)


def drop_expired(conn: Connection) -> list[str]:
    """Deletes the rows of some expired checkpoints and returns their ids; none if
    there are no more."""
    over = checkpoints.c.expires_at <= not_before()
    query = select(checkpoints.c.checkpoint_id).where(over).limit(_EXPIRED_AT_ONCE)
    ids = list(conn.execute(query).scalars())
    if ids:
        conn.execute(delete(checkpoints).where(checkpoints.c.checkpoint_id.in_(ids)))
    return ids


def all_ids(conn: Connection) -> set[str]:
    """Returns the ids of all checkpoints, which are the folders that must stay."""
    return set(conn.execute(select(checkpoints.c.checkpoint_id)).scalars())


def _update(conn: Connection, owner: str, checkpoint_id: str, **values: object) -> None:
    conn.execute(
        update(checkpoints)
        .where(checkpoints.c.checkpoint_id == checkpoint_id, checkpoints.c.owner == owner)
        .values(**values)
    )


def _named(model_id: str, kind: str, name: str) -> tuple[ColumnElement[bool], ...]:
    return (
        checkpoints.c.model_id == model_id,
        checkpoints.c.kind == kind,
        checkpoints.c.name == name,
    )


def _alive() -> ColumnElement[bool]:
    return or_(checkpoints.c.expires_at.is_(None), checkpoints.c.expires_at > not_before())


def _to_checkpoint(row: Row[tuple[object, ...]]) -> Checkpoint:
    values = dict(row._mapping)
    values["optimizer_config"] = msgspec.json.decode(values["optimizer_config"])
    if values["user_metadata"] is not None:
        values["user_metadata"] = msgspec.json.decode(values["user_metadata"])
    return Checkpoint(**values)


def _dump(value: object) -> str:
    return msgspec.json.encode(value).decode()
