"""Output of commands: data on stdout, messages on stderr.

Every command loads this, so it loads little itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path


def print_json(value: Any) -> None:
    """Prints one JSON document on stdout."""
    import json

    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_table(rows: Sequence[Sequence[object]], *, header: Sequence[str] = ()) -> None:
    """Prints aligned columns on stdout, two blanks apart."""
    table = [[printable(cell) for cell in row] for row in ([header] if header else []) + [*rows]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def say(text: str) -> None:
    """Prints a message for the user on stderr."""
    click.echo(printable(text), err=True)


def printable(value: object) -> str:
    """Returns a value as text that cannot control a terminal: control characters are escaped."""
    text = "-" if value is None else str(value)
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


def printable_lines(text: str) -> str:
    """Like `printable` for a longer text: line ends and tabs are kept."""
    return "\n".join(
        "\t".join(printable(cell) for cell in line.split("\t")) for line in text.split("\n")
    )


def plain(value: Any) -> Any:
    """Returns a struct of the protocol as plain JSON values, under the protocol's names."""
    import msgspec

    return msgspec.to_builtins(value)


def size_text(size_bytes: int | None) -> str | None:
    """Returns a size in bytes with a readable unit.

    >>> size_text(1_234_567)
    '1.2 MB'
    """
    if size_bytes is None:
        return None
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def counted(number: int, noun: str) -> str:
    """Returns a count with its noun.

    >>> counted(1, "step"), counted(2, "step")
    ('1 step', '2 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def time_text(when: datetime | None) -> str | None:
    """Returns a time for display, to the minute, in UTC."""
    from datetime import UTC

    return None if when is None else f"{when.astimezone(UTC):%Y-%m-%d %H:%M}"


def is_interactive() -> bool:
    """Returns whether a prompt can be shown: both stdin and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, is_agreed: bool) -> None:
    """Asks for confirmation of an irreversible action, unless `--yes` was given.

    Raises:
        click.UsageError: there is no terminal, and --yes was not given.
        click.exceptions.Exit: the answer was no.
    """
    if is_agreed:
        return
    if not is_interactive():
        raise click.UsageError(
            "This cannot be undone, and there is no terminal to confirm it on: add --yes."
        )
    if not click.confirm(question, err=True):
        say("Nothing was done.")
        raise click.exceptions.Exit(1)


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old content or the new, never a part."""
    import tempfile
    from pathlib import Path

    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
