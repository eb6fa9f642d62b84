"""Models: adapters being trained, each a run with its own order of operations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, func, or_, select, update

from tinkex.store.bulk_sql import update_rows
from tinkex.store.compiled_sql import Prepared
from tinkex.store.run_series import LoggedHead, SeriesHead
from tinkex.store.schema import models, sessions

_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(SeriesHead).decode
_decode_logged = msgspec.msgpack.Decoder(LoggedHead).decode


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model as stored. `spec` is the engine's adapter specification as JSON."""

    model_id: str
    owner: str
    session_id: str
    base_model: str
    engine_model: str
    spec: str
    optimizer_config: dict[str, Any]
    user_metadata: dict[str, Any] | None
    state: str
    created_at: float
    last_request_at: float
    snapshot_seq: int | None = None
    snapshot_folder: str | None = None
    snapshot_bytes: int | None = None
    trimmed_seq: int | None = None
    num_tokens: int = 0
    num_steps: int = 0
    key_id: int | None = None
    name: str | None = None
    tags: dict[str, str] | None = None
    root_id: str | None = None
    resumed_from: str | None = None
    first_point: int | None = None
    series: bytes | None = None
    logged: bytes | None = None

    @property
    def root(self) -> str:
        """The first run of the chain of runs that this one goes on."""
        return self.root_id or self.model_id


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """The chain of runs before a run that was made from a checkpoint."""

    resumed_from: str
    root_id: str | None
    first_point: int
    series: SeriesHead
    name: str | None
    tags: dict[str, str]


class SubmitState(msgspec.Struct, frozen=True):
    """The fields of a model that a submit checks."""

    state: str
    trimmed_seq: int | None


class Used(msgspec.Struct):
    """The usage of a model's operations, and the head of its series if they changed it."""

    num_tokens: int = 0
    num_steps: int = 0
    series: bytes | None = None


class SnapshotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A recovery snapshot: an adapter's whole state on disk."""

    folder: str
    size_bytes: int


class SnapshotBefore(msgspec.Struct, frozen=True):
    """The snapshot that a newer one replaced, if there was one."""

    folder: str | None


def insert(conn: Connection, model: Model) -> None:
    """Adds the model."""
    values = msgspec.structs.asdict(model)
    values["optimizer_config"] = _dump(model.optimizer_config)
    if model.user_metadata is not None:
        values["user_metadata"] = _dump(model.user_metadata)
    values["tags"] = _dump(model.tags or {})
    conn.execute(models.insert().values(**values))


def get(conn: Connection, owner: str, model_id: str) -> Model | None:
    """Returns the owner's model."""
    query = select(models).where(models.c.model_id == model_id, models.c.owner == owner)
    row = conn.execute(query).first()
    return None if row is None else _to_model(row)


def get_any(conn: Connection, model_id: str) -> Model | None:
    """Returns the model of any owner; for the scheduler, which serves all."""
    row = conn.execute(select(models).where(models.c.model_id == model_id)).first()
    return None if row is None else _to_model(row)


def list_runs(
    conn: Connection, owner: str, *, limit: int, offset: int, project_id: str | None = None
) -> tuple[list[Model], int]:
    """Returns the owner's models, last used first, and how many there are in all."""
    where = [models.c.owner == owner, models.c.state != "creating"]
    query = select(models).where(*where)
    count = select(func.count()).select_from(models).where(*where)
    if project_id is not None:
        in_project = models.c.session_id.in_(
            select(sessions.c.session_id).where(
                sessions.c.owner == owner, sessions.c.project_id == project_id
            )
        )
        query, count = query.where(in_project), count.where(in_project)
    query = query.order_by(models.c.last_request_at.desc(), models.c.model_id)
    rows = conn.execute(query.limit(limit).offset(offset))
    return [_to_model(row) for row in rows], conn.execute(count).scalar_one()


def set_state(conn: Connection, model_id: str, state: str) -> None:
    """Sets the model's state."""
    conn.execute(update(models).where(models.c.model_id == model_id).values(state=state))


_BLOB = models.c.series.type
_ADDING_USAGE = (
    update(models)
    .where(models.c.model_id == bindparam("id"))
    .values(
        num_tokens=models.c.num_tokens + bindparam("tokens", type_=models.c.num_tokens.type),
        num_steps=models.c.num_steps + bindparam("steps", type_=models.c.num_steps.type),
        last_request_at=bindparam("now"),
        series=func.coalesce(bindparam("head", type_=_BLOB), models.c.series, type_=_BLOB),
    )
)
_ADD_USAGE = Prepared(_ADDING_USAGE)
_ADD_USAGE_ALL = update_rows(_ADDING_USAGE, "id", "tokens", "steps", "now", "head")
_STANDING = Prepared(
    select(models.c.state, models.c.trimmed_seq).where(
        models.c.model_id == bindparam("id"), models.c.owner == bindparam("by")
    )
)


def add_usage(conn: Connection, used: Mapping[str, Used]) -> None:
    """Adds trained tokens and optimizer steps, and records that the models were just used."""
    now = time.time()
    rows = [
        (model_id, each.num_tokens, each.num_steps, now, each.series)
        for model_id, each in used.items()
    ]
    if _ADD_USAGE_ALL.did_all(conn, rows):
        return
    for model_id, num_tokens, num_steps, _, head in rows:
        _ADD_USAGE.count(conn, id=model_id, tokens=num_tokens, steps=num_steps, now=now, head=head)


def submit_state(conn: Connection, owner: str, model_id: str) -> SubmitState | None:
    """Returns the state of the owner's model that a submit checks. For use inside a write."""
    rows = _STANDING.rows(conn, id=model_id, by=owner)
    return SubmitState(*rows[0]) if rows else None


def set_spec(conn: Connection, model_id: str, spec: str) -> None:
    """Records the adapter's specification after other weights were loaded into it."""
    conn.execute(update(models).where(models.c.model_id == model_id).values(spec=spec))


def series_head(conn: Connection, model_id: str) -> SeriesHead:
    """Returns the head of the run's series; an empty one if it has none."""
    found = conn.execute(select(models.c.series).where(models.c.model_id == model_id)).scalar()
    return decode_series(found)


def decode_series(stored: bytes | None) -> SeriesHead:
    """Decodes the head of a series from a model's row."""
    return SeriesHead() if stored is None else _decode_head(stored)


def decode_logged(stored: bytes | None) -> LoggedHead:
    """Decodes the users' logged metrics from a model's row."""
    return LoggedHead() if stored is None else _decode_logged(stored)


def set_logged(conn: Connection, model_id: str, logged: LoggedHead) -> None:
    """Stores the users' logged metrics."""
    row = update(models).where(models.c.model_id == model_id)
    conn.execute(row.values(logged=_encode(logged)))


def resumed_values(resumed: Resumed) -> dict[str, Any]:
    """Returns the fields of a new `Model` that continues the chain."""
    return {**msgspec.structs.asdict(resumed), "series": _encode(resumed.series)}


def resume(conn: Connection, model_id: str, resumed: Resumed) -> None:
    """Attaches the run to the chain that it was resumed from."""
    values = {**resumed_values(resumed), "tags": _dump(resumed.tags)}
    conn.execute(update(models).where(models.c.model_id == model_id).values(**values))


def rename(
    conn: Connection, owner: str, model_id: str, changes: Mapping[str, str | dict[str, str] | None]
) -> bool:
    """Sets the name or tags of the run and of all runs of its chain; returns whether the
    owner has it."""
    model = get(conn, owner, model_id)
    if model is None:
        return False
    values = {
        name: _dump(value) if isinstance(value, dict) else value for name, value in changes.items()
    }
    chain = or_(models.c.model_id == model.root, models.c.root_id == model.root)
    if values:
        conn.execute(update(models).where(models.c.owner == owner, chain).values(**values))
    return True


def record_snapshot(
    conn: Connection, model_id: str, seq_id: int, snapshot: SnapshotRecord
) -> SnapshotBefore | None:
    """Records that recovery begins at this snapshot from now on; bodies up to it are not needed.

    Returns the snapshot it replaced, or None if the run is over: then the snapshot has no owner.
    """
    before = select(models.c.snapshot_folder).where(models.c.model_id == model_id)
    folder = conn.execute(before).scalar()
    taken = conn.execute(
        update(models)
        .where(models.c.model_id == model_id, models.c.state != "ended")
        .values(
            snapshot_seq=seq_id,
            snapshot_folder=snapshot.folder,
            snapshot_bytes=snapshot.size_bytes,
        )
    )
    if folder == snapshot.folder:  # it was stored already; the answer was lost
        folder = None
    return SnapshotBefore(folder) if taken.rowcount else None


def snapshot_folders(conn: Connection) -> set[str]:
    """Returns the snapshot folders still needed."""
    query = select(models.c.snapshot_folder).where(models.c.snapshot_folder.is_not(None))
    return {folder for folder in conn.execute(query).scalars() if folder}


def of_session(conn: Connection, session_id: str) -> list[str]:
    """Returns the ids of the session's models."""
    return list(
        conn.execute(select(models.c.model_id).where(models.c.session_id == session_id)).scalars()
    )


def _to_model(row: Row[tuple[object, ...]]) -> Model:
    values = dict(row._mapping)
    values["optimizer_config"] = msgspec.json.decode(values["optimizer_config"])
    if values["user_metadata"] is not None:
        values["user_metadata"] = msgspec.json.decode(values["user_metadata"])
    values["tags"] = msgspec.json.decode(values["tags"] or "{}")
    return Model(**values)


def _dump(value: object) -> str:
    return msgspec.json.encode(value).decode()
