"""Many rows in one statement, where the database is SQLite.

Every statement releases the interpreter lock, and on a busy server getting it back takes longer
than the statement. So equal writes are first tried as one statement. If it changes as many rows as
it was given, it is done. If a row is refused, the statement is undone and the writes run one by
one. PostgreSQL always runs them one by one.

A statement over many rows is made from the SQLAlchemy statement for one row, or from its table, so
that what it means is written once.

Undoing a statement takes a savepoint. Inside `abort_on_refusal` there are no savepoints: a refused
row aborts the whole transaction, and the caller repeats it with savepoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import BindParameter, Connection, Table, TextualSelect, Update, column, text
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable
from sqlalchemy.sql.visitors import replacement_traverse

__all__ = [
    "BatchableWrite",
    "BulkStatement",
    "RowRefused",
    "abort_on_refusal",
    "insert_rows",
    "many_rows",
    "update_rows",
]

T = TypeVar("T")

_MOST_VALUES = 30_000  # SQLite takes 32,766 in one statement
_ABORTS = "aborts_on_refusal"


class RowRefused(Exception):
    """A row was refused; the transaction has to be aborted."""


@contextmanager
def abort_on_refusal(conn: Connection) -> Iterator[None]:
    """Inside, a refused row raises `RowRefused`, for the caller to abort the transaction."""
    conn.info[_ABORTS] = True
    try:
        yield
    finally:
        del conn.info[_ABORTS]


class BatchableWrite(Generic[T]):
    """A write that can be done for many callers in one statement.

    `one` takes a connection and one caller's arguments. `many` takes those of all callers and
    returns the result for each, or None if it changed nothing because one of them was refused.
    """

    def __init__(
        self,
        one: Callable[..., T],
        many: Callable[[Connection, list[tuple[Any, ...]]], list[T] | None],
    ) -> None:
        self._one = one
        self.many = many

    def __call__(self, conn: Connection, *args: Any) -> T:
        return self._one(conn, *args)


def many_rows(num_columns: int) -> TextualSelect:
    """Returns the rows given to a `BulkStatement`, as a part of it; SQLite calls their columns
    column1, column2 ..."""
    return text("VALUES {rows}").columns(*(column(f"column{n + 1}") for n in range(num_columns)))


def insert_rows(table: Table, *names: str) -> BulkStatement:
    """Inserts rows with values of these columns, except those whose unique key is taken."""
    rows = many_rows(len(names))
    return BulkStatement(sqlite.insert(table).from_select(names, rows).on_conflict_do_nothing())


def update_rows(statement: Update, *names: str) -> BulkStatement:
    """An update for many rows at once. In `statement`, which updates one, values come by name; a
    row has them in the order of `names`."""
    rows = many_rows(len(names)).subquery("new")
    values = dict(zip(names, rows.c, strict=True))

    def from_row(element: Any, **_: Any) -> Any:
        return values.get(element.key) if isinstance(element, BindParameter) else None

    return BulkStatement(cast("Update", replacement_traverse(statement, {}, from_row)))


class BulkStatement:
    """A statement of SQLite over `many_rows`."""

    def __init__(self, statement: Executable) -> None:
        self._statement = statement

    @cached_property
    def _text(self) -> str:
        compiled = self._statement.compile(  # type: ignore[attr-defined]
            dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}
        )
        return str(compiled)

    def did_all(self, conn: Connection, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Returns whether the statement changed all given rows; if not, it changed none.

        Raises:
            RowRefused: it did not, inside `abort_on_refusal`.
        """
        if conn.dialect.name != "sqlite" or len(rows) < 2:
            return False
        if len(rows) * len(rows[0]) > _MOST_VALUES:
            return False
        driver: Any = conn.connection.driver_connection
        if _ABORTS in conn.info:
            if self._run(conn, driver, rows) != len(rows):
                raise RowRefused
            return True
        driver.execute("SAVEPOINT many")
        is_whole = self._run(conn, driver, rows) == len(rows)
        if not is_whole:
            driver.execute("ROLLBACK TO SAVEPOINT many")
        driver.execute("RELEASE SAVEPOINT many")
        return is_whole

    def _run(self, conn: Connection, driver: Any, rows: Sequence[tuple[Any, ...]]) -> int:
        marks = f"({','.join('?' * len(rows[0]))})"
        filled = self._text.replace("{rows}", ",".join([marks] * len(rows)))
        failure: type[Exception] = conn.dialect.loaded_dbapi.Error
        try:
            changed: int = driver.execute(filled, list(chain.from_iterable(rows))).rowcount
        except failure as error:
            raise DBAPIError.instance(self._text, None, error, failure) from error
        return changed
