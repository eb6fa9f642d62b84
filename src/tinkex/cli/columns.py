"""Lists as tables for people or as CSV for programs: the columns, and how values are formatted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import click

from tinkex.cli.output import print_table, say, time_text, write_atomically

__all__ = [
    "Column",
    "ListFormat",
    "columns_option",
    "csv_option",
    "list_format",
    "show_list",
    "write_csv",
]

Row = TypeVar("Row")

columns_option = click.option(
    "-c", "--columns", metavar="NAMES", help="The columns to show, with commas in between."
)
csv_option = click.option(
    "--csv", "csv_path", metavar="FILE", help="Write CSV to a file; '-' is stdout."
)


class Column(NamedTuple, Generic[Row]):
    """A column: its name for `--columns` and CSV, its heading, and the reader of its value.

    `shown` makes the value readable in a table; CSV has the value itself.
    """

    name: str
    heading: str
    read: Callable[[Row], object]
    shown: Callable[[Any], object] | None = None

    def cell(self, row: Row) -> object:
        """Returns the value for a table."""
        value = self.read(row)
        if self.shown is not None:
            return self.shown(value)
        return time_text(value) if isinstance(value, datetime) else value

    def field(self, row: Row) -> object:
        """Returns the value for CSV."""
        value = self.read(row)
        return value.isoformat() if isinstance(value, datetime) else value


class ListFormat(NamedTuple, Generic[Row]):
    """The chosen columns, and the CSV file if there is one."""

    columns: list[Column[Row]]
    csv_path: str | None = None


def list_format(
    columns: Sequence[Column[Row]],
    usual: Sequence[str],
    *,
    names: str | None = None,
    csv_path: str | None = None,
    others: Sequence[bool] = (),
) -> ListFormat[Row]:
    """Returns the format that `--columns` and `--csv` select; `others` are flags of other ones.

    A table has the usual columns unless `names` are given, CSV has all.

    Raises:
        click.UsageError: a column is unknown, or two formats were given.
    """
    if any(others) and (names is not None or csv_path is not None):
        raise click.UsageError("--csv and --columns do not go with --json or --quiet.")
    known = {column.name: column for column in columns}
    default = usual if csv_path is None else list(known)
    wanted = default if names is None else [each.strip() for each in names.split(",")]
    for name in wanted:
        if name not in known:
            raise click.UsageError(f"There is no column {name!r}; there are: {', '.join(known)}.")
    return ListFormat([known[name] for name in wanted], csv_path)


def show_list(rows: Sequence[Row], form: ListFormat[Row], *, if_empty: str) -> None:
    """Prints a table, or `if_empty` on stderr without rows; or writes CSV with a header line."""
    if form.csv_path is None and not rows:
        say(if_empty)
        return
    if form.csv_path is None:
        print_table(
            [[column.cell(row) for column in form.columns] for row in rows],
            header=[column.heading for column in form.columns],
        )
        return
    names = [column.name for column in form.columns]
    write_csv(form.csv_path, names, [[each.field(row) for each in form.columns] for row in rows])


def write_csv(path: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Writes CSV to a file, which appears once it is whole, or to stdout for '-'."""
    import csv
    import io
    from pathlib import Path

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    if path == "-":
        click.echo(text.getvalue(), nl=False)
    else:
        write_atomically(Path(path).expanduser(), text.getvalue())
