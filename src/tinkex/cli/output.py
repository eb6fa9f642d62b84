"""What commands print: data on stdout, talk on stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(rows: Sequence[Sequence[object]], *, header: Sequence[str] = ()) -> None:
    """Aligned columns on stdout, two blanks apart."""
    table = [[printable(cell) for cell in row] for row in ([header] if header else []) + [*rows]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def say(text: str) -> None:
    """A remark for the person at the terminal, on stderr."""
    click.echo(printable(text), err=True)


def printable(value: object) -> str:
    """A value as text that cannot steer a terminal: control characters are written out."""
    text = "-" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)
