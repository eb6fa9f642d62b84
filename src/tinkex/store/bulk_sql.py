"""Many rows in one statement, where the database is SQLite.

With every statement a thread gives up the interpreter and has to get it back, which on a busy
server takes longer than the statement. So what is alike is tried at once: a statement that did all
its rows was as good as one for each. If it did not, for one row may be refused, it did none, and
they go one by one. PostgreSQL always goes one by one.

Doing none takes a savepoint. In a transaction that is `given_up` as a whole when a row is refused,
and then tried again with savepoints, there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

__all__ = ["AtOnce", "ManyRows", "RowRefused", "given_up"]

T = TypeVar("T")

_MOST_VALUES = 30_000  # SQLite takes 32,766 in one statement
_GIVEN_UP = "given_up_as_a_whole"


class RowRefused(Exception):
    """A row was refused in a transaction that is given up then."""


@contextmanager
def given_up(conn: Connection) -> Iterator[None]:
    """Inside, a row that is refused raises `RowRefused`: the whole transaction has to go."""
    conn.info[_GIVEN_UP] = True
    try:
        yield
    finally:
        del conn.info[_GIVEN_UP]


class AtOnce(Generic[T]):
    """A write that can be done for many callers at once.

    `one` takes a connection and a caller's arguments; `many` takes those of all callers and gives
    what each is answered, or None if it did nothing because one of them stands in the way.
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


class ManyRows:
    """A statement of SQLite over `(VALUES {rows})`, whose columns are column1, column2 ..."""

    def __init__(self, text: str) -> None:
        self._text = text

    def did_all(self, conn: Connection, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Whether the statement changed as many rows as there are here; if not, it did none.

        Raises:
            RowRefused: it did not, and the transaction is to be given up.
        """
        if conn.dialect.name != "sqlite" or len(rows) < 2:
            return False
        if len(rows) * len(rows[0]) > _MOST_VALUES:
            return False
        driver: Any = conn.connection.driver_connection
        if _GIVEN_UP in conn.info:
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
        text = self._text.replace("{rows}", ",".join([marks] * len(rows)))
        failure: type[Exception] = conn.dialect.loaded_dbapi.Error
        try:
            changed: int = driver.execute(text, list(chain.from_iterable(rows))).rowcount
        except failure as error:
            raise DBAPIError.instance(self._text, None, error, failure) from error
        return changed
