"""`tinkex keys`: the keys of a server on this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tinkex.cli.data_dir import data_dir_option, database_option
from tinkex.cli.options import json_option
from tinkex.cli.output import print_json, print_table, say


@click.group(short_help="Make, list and revoke a server's keys.")
def command() -> None:
    """Make, list and revoke the keys of a server on this machine.

    Works on the server's data folder, whether the server runs or not.
    """


@command.command()
@click.option("--name", default="key", show_default=True, help="What you call it.")
@click.option("--owner", help="Whose runs it sees; without one it gets a space of its own.")
@data_dir_option
@database_option
@json_option
def create(
    name: str, owner: str | None, data_dir: Path, database_url: str | None, is_json: bool
) -> None:
    """Make a key and print it; it is shown this once.

    \b
    Examples:
      tinkex keys create --name laptop
      tinkex keys create --owner alice --json

    \b
    JSON: {"key", "key_id", "name", "owner"}
    """
    from tinkex.server.admin import create_key

    key, info = create_key(data_dir, database_url, name=name, owner=owner)
    if is_json:
        print_json({"key": key, "key_id": info.key_id, "name": info.name, "owner": info.owner})
        return
    click.echo(key)
    say(f"Key {info.key_id} of {info.owner}. It is shown this once; only its hash is kept.")


@command.command(name="list")
@data_dir_option
@database_option
@json_option
def list_(data_dir: Path, database_url: str | None, is_json: bool) -> None:
    """List the keys.

    \b
    Examples:
      tinkex keys list

    \b
    JSON: {"keys": [{"key_id", "name", "owner", "key": "tml-…TAIL", "created", "revoked"}]}
    """
    from tinkex.server.admin import list_keys

    rows: list[dict[str, Any]] = [
        {
            "key_id": key.key_id,
            "name": key.name,
            "owner": key.owner,
            "key": f"tml-…{key.tail}",
            "created": _time(key.created_at),
            "revoked": None if key.revoked_at is None else _time(key.revoked_at),
        }
        for key in list_keys(data_dir, database_url)
    ]
    if is_json:
        print_json({"keys": rows})
    elif rows:
        print_table([tuple(row.values()) for row in rows], header=tuple(rows[0]))
    else:
        say("There are no keys yet.")


@command.command()
@click.argument("key_id", type=int)
@data_dir_option
@database_option
def revoke(key_id: int, data_dir: Path, database_url: str | None) -> None:
    """Refuse a key from now on.

    \b
    Examples:
      tinkex keys revoke 2
    """
    from tinkex.server.admin import revoke_key

    revoke_key(data_dir, database_url, key_id)
    say(f"Key {key_id} is revoked; a running server refuses it within two seconds.")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
