"""Statements of the hot path: written once in SQLAlchemy, compiled once, run on the driver itself.

Building a statement and carrying it through SQLAlchemy costs ten times what SQLite needs to run
it, and every request of a client passes through here. What a statement means is still written in
one language for both databases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import Executable
from sqlalchemy.sql.compiler import SQLCompiler

__all__ = ["Prepared"]


class Prepared:
    """A statement with named values. Columns are returned as the driver gives them.

    Works inside a transaction that is open already. `statement` may be a function of the
    dialect's name where the two databases differ.
    """

    def __init__(self, statement: Executable | Callable[[str], Executable]) -> None:
        self._statement = statement
        self._forms: dict[str, _Form] = {}

    def rows(self, conn: Connection, /, **values: Any) -> list[tuple[Any, ...]]:
        """Returns the rows of the statement."""
        found: list[tuple[Any, ...]] = self._run(conn, values).fetchall()
        return found

    def count(self, conn: Connection, /, **values: Any) -> int:
        """Returns how many rows the statement changed."""
        changed: int = self._run(conn, values).rowcount
        return changed

    def _run(self, conn: Connection, values: dict[str, Any]) -> Any:
        form = self._forms.get(conn.dialect.name) or self._compile(conn.dialect)
        driver: Any = conn.connection.driver_connection
        try:
            return driver.execute(form.text, form.bind(values))
        except form.failure as error:
            raise DBAPIError.instance(form.text, None, error, form.failure) from error

    def _compile(self, dialect: Dialect) -> _Form:
        statement = self._statement
        if not isinstance(statement, Executable):
            statement = statement(dialect.name)
        form = self._forms[dialect.name] = _Form(dialect, statement)
        return form


class _Form:
    """The compiled statement for one kind of database."""

    def __init__(self, dialect: Dialect, statement: Executable) -> None:
        compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        assert isinstance(compiled, SQLCompiler)
        self.text = str(compiled)
        self.failure: type[Exception] = dialect.loaded_dbapi.Error
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}
        self._order = compiled.positiontup

    def bind(self, values: dict[str, Any]) -> Any:
        every = {**self._fixed, **values}
        return every if self._order is None else [every[name] for name in self._order]
