"""Usage of a tenant's quotas: open sessions, their models, bytes on disk; and the checks of the
first two. The check of bytes is in `disk_quota`.

Counted from the rows, inside the transaction that would add one, so that two concurrent requests
cannot both get the last place.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, func, select

from tinkex.errors import ClientError
from tinkex.store.schema import checkpoints, models, sampling_sessions, sessions

_SIZES = (
    (checkpoints, checkpoints.c.size_bytes),
    (sampling_sessions, sampling_sessions.c.size_bytes),
    (models, models.c.snapshot_bytes),
)


class QuotaExceeded(ClientError):
    """422: the tenant's quota is used up.

    Not 429: waiting does not help, and clients would do so for minutes.
    """

    code = "quota-exceeded"
    status = 422


class DiskUse(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes on disk that belong to a tenant."""

    num_checkpoints: int
    checkpoints: int
    samplers: int
    snapshots: int

    @property
    def total(self) -> int:
        """The sum of all kinds."""
        return self.checkpoints + self.samplers + self.snapshots


def disk_use(conn: Connection, owner: str) -> DiskUse:
    """Returns the owner's bytes on disk. An expired checkpoint counts until it is removed."""
    saved = checkpoints.c.size_bytes
    count, size = conn.execute(
        select(func.count(), func.sum(saved)).where(checkpoints.c.owner == owner)
    ).one()
    held = sampling_sessions.c.size_bytes
    in_samplers = select(func.sum(held)).where(
        sampling_sessions.c.owner == owner, held.is_not(None)
    )
    kept = models.c.snapshot_bytes
    in_snapshots = select(func.sum(kept)).where(models.c.owner == owner, kept.is_not(None))
    return DiskUse(
        num_checkpoints=count,
        checkpoints=int(size or 0),
        samplers=_number(conn, in_samplers),
        snapshots=_number(conn, in_snapshots),
    )


def disk_use_of_all(conn: Connection) -> int:
    """Returns the bytes on disk of all owners together."""
    columns = (checkpoints.c.size_bytes, sampling_sessions.c.size_bytes, models.c.snapshot_bytes)
    return sum(_number(conn, select(func.sum(column))) for column in columns)


def bytes_by_owner(conn: Connection) -> dict[str, int]:
    """Returns the bytes on disk of each owner; owners without any are left out."""
    found: Counter[str] = Counter()
    for table, size in _SIZES:
        query = select(table.c.owner, func.sum(size)).where(size.is_not(None))
        for owner, num_bytes in conn.execute(query.group_by(table.c.owner)):
            found[owner] += int(num_bytes)
    return {owner: num_bytes for owner, num_bytes in found.items() if num_bytes}


def bytes_by_run(conn: Connection, owner: str) -> dict[str, int]:
    """Returns the bytes on disk of each of the owner's runs; runs without any are left out."""
    found: Counter[str] = Counter()
    for table, size in _SIZES:
        query = select(table.c.model_id, func.sum(size)).where(
            table.c.owner == owner, size.is_not(None), table.c.model_id.is_not(None)
        )
        for model_id, num_bytes in conn.execute(query.group_by(table.c.model_id)):
            found[model_id] += int(num_bytes)
    return {model_id: num_bytes for model_id, num_bytes in found.items() if num_bytes}


def bytes_by_key(conn: Connection, owner: str) -> dict[int | None, int]:
    """Returns the bytes on disk of the owner's runs, by the key that made the run."""
    query = select(models.c.model_id, models.c.key_id).where(models.c.owner == owner)
    of_run = bytes_by_run(conn, owner)
    found: Counter[int | None] = Counter()
    for model_id, key_id in conn.execute(query):
        found[key_id] += of_run.get(model_id, 0)
    return {key_id: num_bytes for key_id, num_bytes in found.items() if num_bytes}


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints a tenant keeps in one project."""

    project_id: str | None
    num_checkpoints: int
    size_bytes: int


def kept_by_project(conn: Connection, owner: str, project_id: str | None) -> list[Kept]:
    """Returns the owner's checkpoints by project, or those of one project."""
    query = (
        select(
            sessions.c.project_id,
            func.count().label("num_checkpoints"),
            func.sum(checkpoints.c.size_bytes).label("size_bytes"),
        )
        .select_from(checkpoints)
        .join(models, models.c.model_id == checkpoints.c.model_id)
        .join(sessions, sessions.c.session_id == models.c.session_id)
        .where(checkpoints.c.owner == owner)
        .group_by(sessions.c.project_id)
        .order_by(sessions.c.project_id)
    )
    if project_id is not None:
        query = query.where(sessions.c.project_id == project_id)
    return [
        Kept(
            project_id=row.project_id,
            num_checkpoints=row.num_checkpoints,
            size_bytes=int(row.size_bytes),
        )
        for row in conn.execute(query)
    ]


def open_sessions(conn: Connection, owner: str) -> int:
    """Returns the number of the owner's sessions that have not ended."""
    query = select(func.count()).where(sessions.c.owner == owner, sessions.c.finished_at.is_(None))
    return _number(conn, query)


def open_models(conn: Connection, owner: str) -> int:
    """Returns the number of models in the owner's open sessions that were not unloaded."""
    query = (
        select(func.count())
        .select_from(sessions)
        .join(models, models.c.session_id == sessions.c.session_id)
        .where(
            sessions.c.owner == owner,
            sessions.c.finished_at.is_(None),
            models.c.state.in_(["creating", "ready"]),
        )
    )
    return _number(conn, query)


def check_sessions(conn: Connection, owner: str, most: int) -> None:
    """Refuses one more session above the limit.

    Raises:
        QuotaExceeded: the limit is reached.
    """
    if (held := open_sessions(conn, owner)) >= most:
        raise QuotaExceeded(
            f"You have {held} open sessions, and this server's limit is {most}.",
            hint="Close clients that are done (close() ends their session), or wait: sessions "
            "without a heartbeat end by themselves.",
        )


def check_models(conn: Connection, owner: str, most: int) -> None:
    """Refuses one more model above the limit.

    Raises:
        QuotaExceeded: the limit is reached.
    """
    if (held := open_models(conn, owner)) >= most:
        raise QuotaExceeded(
            f"Your open sessions have {held} models, and this server's limit is {most}.",
            hint="Close clients that are done: models of a session that has ended do not count.",
        )


def _number(conn: Connection, query: Select[Any]) -> int:
    return int(conn.execute(query).scalar() or 0)
