"""Usage of tenants by key, run and day: one row each, added to in the transaction of the results.

Days are those of UTC by the wall clock, counted from the epoch. A row of a key that is not known
has the key 0, one of no run an empty run. `bytes_kept` is no sum: rows without a run have it, as it
was at the last count of their day.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, func, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import Executable

from tinkex.store.bulk_sql import BulkStatement, many_rows
from tinkex.store.compiled_sql import Prepared
from tinkex.store.schema import keys, usage

__all__ = [
    "KEPT_DAYS",
    "Grouping",
    "Spent",
    "UsageOf",
    "UsageSums",
    "add",
    "bytes_changed",
    "day_of",
    "drop_days",
    "list_by",
    "record_bytes",
    "today",
]

Grouping = Literal["day", "key", "run", "total"]

KEPT_DAYS = 400
"""Days for which usage is kept."""

_EPOCH = date(1970, 1, 1)
_DAY_S = 86_400
_AT_ONCE = 500
_COUNTS = ("tokens_trained", "tokens_sampled", "tokens_scored", "tokens_cached", "engine_s")
_SUMMED = (*_COUNTS, "bytes_kept")
_KEY = ("owner", "day", "key_id", "run_id")


class Spent(msgspec.Struct):
    """The usage of some requests."""

    tokens_trained: int = 0
    tokens_sampled: int = 0
    tokens_scored: int = 0
    tokens_cached: int = 0
    engine_s: float = 0.0

    def add(self, other: Spent) -> None:
        """Adds the usage of other requests."""
        self.tokens_trained += other.tokens_trained
        self.tokens_sampled += other.tokens_sampled
        self.tokens_scored += other.tokens_scored
        self.tokens_cached += other.tokens_cached
        self.engine_s += other.engine_s


class UsageOf(msgspec.Struct, frozen=True):
    """The owner, key and run that a request's usage counts for."""

    owner: str
    key_id: int | None
    run_id: str | None


class UsageSums(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one group; columns it is not grouped by are None."""

    day: date | None = None
    key_id: int | None = None
    key_name: str | None = None
    run_id: str | None = None
    tokens_trained: int
    tokens_sampled: int
    tokens_scored: int
    tokens_cached: int
    engine_s: float
    bytes_kept: int


def _adding(insert: Any) -> Any:
    """Returns the statement that inserts the row, or adds to it if it exists."""
    sums = {name: usage.c[name] + insert.excluded[name] for name in _COUNTS}
    return insert.on_conflict_do_update(index_elements=list(_KEY), set_=sums)


def _add_one(dialect: str) -> Executable:
    insert = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(usage)
    values = {name: bindparam(name, type_=usage.c[name].type) for name in (*_KEY, *_COUNTS)}
    added: Executable = _adding(insert.values(**values, bytes_kept=0))
    return added


def _add_many() -> BulkStatement:
    names = (*_KEY, *_COUNTS, "bytes_kept")
    return BulkStatement(_adding(sqlite.insert(usage).from_select(names, many_rows(len(names)))))


_ADD, _ADD_ALL = Prepared(_add_one), _add_many()


def add(conn: Connection, used: Iterable[tuple[UsageOf, Spent]]) -> None:
    """Adds to today's rows."""
    sums: dict[UsageOf, Spent] = {}
    for of, spent in used:
        sums.setdefault(of, Spent()).add(spent)
    day = today()
    rows = [
        (of.owner, day, of.key_id or 0, of.run_id or "", *msgspec.structs.astuple(spent))
        for of, spent in sums.items()
    ]
    if not _ADD_ALL.did_all(conn, [(*row, 0) for row in rows]):
        for row in rows:
            _ADD.count(conn, **dict(zip((*_KEY, *_COUNTS), row, strict=True)))


def list_by(
    conn: Connection,
    owner: str,
    by: Grouping,
    first: date | None,
    last: date | None,
    run_id: str | None = None,
) -> list[UsageSums]:
    """Returns the usage of the owner, or of one of its runs, between two days, both included, in
    groups in their order.

    Only groups by day have bytes, and not those of a single run.
    """
    group = {"day": usage.c.day, "key": usage.c.key_id, "run": usage.c.run_id}.get(by)
    column = literal(None) if group is None else group
    sums = [func.sum(usage.c[name]) for name in _SUMMED]
    query: Select[Any] = select(*sums, column).where(usage.c.owner == owner)
    if run_id is not None:
        query = query.where(usage.c.run_id == run_id)
    if first is not None:
        query = query.where(usage.c.day >= (first - _EPOCH).days)
    if last is not None:
        query = query.where(usage.c.day <= (last - _EPOCH).days)
    if group is not None:
        query = query.group_by(group).order_by(group)
    return list(_rows(conn, owner, by, conn.execute(query)))


def bytes_changed(conn: Connection, kept: dict[str, int]) -> dict[str, int]:
    """Returns those of these bytes, by owner, that differ from the number recorded for the day;
    owners with a recorded number who are not among them keep none."""
    query = select(usage.c.owner, usage.c.bytes_kept).where(
        usage.c.day == today(), usage.c.key_id == 0, usage.c.run_id == ""
    )
    noted: dict[str, int] = {row.owner: row.bytes_kept for row in conn.execute(query)}
    now = {**dict.fromkeys(noted, 0), **kept}
    return {owner: count for owner, count in now.items() if noted.get(owner) != count}


def record_bytes(conn: Connection, kept: dict[str, int]) -> None:
    """Records the bytes that these owners keep now, as the number of the day."""
    day = today()
    add(conn, [(UsageOf(owner, None, None), Spent()) for owner in kept])
    for owner, num_bytes in kept.items():
        mine = (usage.c.owner == owner, usage.c.key_id == 0, usage.c.run_id == "")
        note = update(usage).where(*mine, usage.c.day == day)
        conn.execute(note.values(bytes_kept=num_bytes))


def drop_days(conn: Connection, before: int) -> int:
    """Drops a slice of rows of earlier days; returns how many."""
    old = select(usage.c.owner, usage.c.day).where(usage.c.day < before).limit(_AT_ONCE)
    groups = {tuple(row) for row in conn.execute(old)}
    for owner, day in groups:
        conn.execute(delete(usage).where(usage.c.owner == owner, usage.c.day == day))
    return len(groups)


def today() -> int:
    """Returns the present day in UTC, counted from the epoch."""
    return int(time.time() // _DAY_S)


def day_of(number: int) -> date:
    """Returns the date of a day counted from the epoch."""
    return _EPOCH + timedelta(days=number)


def _rows(conn: Connection, owner: str, by: Grouping, found: Iterable[Any]) -> Iterator[UsageSums]:
    names = _key_names(conn, owner) if by == "key" else {}
    for row in found:
        *sums, group = row
        counts: dict[str, Any] = {
            name: value or 0 for name, value in zip(_SUMMED, sums, strict=True)
        }
        if by == "day":
            yield UsageSums(day=day_of(group), **counts)
        elif by == "key":
            yield UsageSums(key_id=group or None, key_name=names.get(group), **counts)
        elif by == "run":
            yield UsageSums(run_id=group or None, **counts)
        else:
            yield UsageSums(**counts)


def _key_names(conn: Connection, owner: str) -> dict[int, str]:
    query = select(keys.c.key_id, keys.c.name).where(keys.c.owner == owner)
    return {row.key_id: row.name for row in conn.execute(query)}
