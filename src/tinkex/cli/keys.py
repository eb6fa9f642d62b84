"""`tinkex keys`: the keys of a server on this machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.data_dir import data_dir_option, database_option, signing_secret_option
from tinkex.cli.options import FiniteRange, json_option
from tinkex.cli.output import counted, print_json, print_table, say

if TYPE_CHECKING:
    from tinkex.server.admin import Owner


_MAX_OWNER_CHARS = 128


def _checked_owner(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Returns the name if it is valid for an owner."""
    if value is None:
        return None
    if not value.strip() or not value.isprintable() or len(value) > _MAX_OWNER_CHARS:
        raise click.BadParameter(
            f"{value[:40]!r} must be 1 to {_MAX_OWNER_CHARS} printable characters.",
            context,
            parameter,
        )
    return value.strip()


_OVERLAP_S = 3600.0  # the life of tokens and download links: each ends before its secret does
_MAX_OVERLAP_S = 24 * 3600.0


@click.group(short_help="Make, list and revoke a server's keys.")
def command() -> None:
    """Make, list and revoke the keys of a server on this machine, and rotate its signing secret.

    Works on the server's data folder, whether the server runs or not.
    """


@command.command()
@click.option("--name", default="key", show_default=True, help="What you call it.")
@click.option(
    "--owner",
    metavar="NAME",
    callback=_checked_owner,
    help="Whose runs and checkpoints it sees.  [default: the only owner there is]",
)
@click.option("--new-owner", is_flag=True, help="For an owner with no work yet.")
@data_dir_option
@database_option
@json_option
def create(
    name: str,
    owner: str | None,
    new_owner: bool,
    data_dir: Path,
    database_url: str | None,
    is_json: bool,
) -> None:
    """Make a key and print it; it is shown this once.

    Keys of one owner see the same runs and checkpoints, so a lost key loses no work: make another
    for the same owner. Where there is one owner, the key is for that one; where there are several,
    name one with --owner, or have a new one made with --new-owner.

    \b
    Examples:
      tinkex keys create --name laptop
      tinkex keys create --owner alice --json
      tinkex keys create --new-owner --owner bob

    \b
    JSON: {"key", "key_id", "name", "owner"}
    """
    from tinkex.errors import ConfigError
    from tinkex.server.admin import create_key

    try:
        made = create_key(data_dir, database_url, name=name, owner=owner, is_new_owner=new_owner)
    except ConfigError as error:
        raise click.UsageError(f"{error.message} {error.hint}") from error
    info = made.info
    if is_json:
        shown = {"key": made.key, "key_id": info.key_id, "name": info.name, "owner": info.owner}
        print_json(shown)
        return
    click.echo(made.key)
    say(f"Key {info.key_id} is shown this once; only its hash is kept.")
    _say_whose(made.owner, is_chosen=owner is not None or new_owner)


@command.command(name="list")
@data_dir_option
@database_option
@json_option
def list_(data_dir: Path, database_url: str | None, is_json: bool) -> None:
    """List the keys, and what their owners have.

    Each owner is listed with its keys that are not revoked, its runs and its checkpoints.

    \b
    Examples:
      tinkex keys list

    \b
    JSON: {"keys": [{"key_id", "name", "owner", "key": "tml-…TAIL", "created", "last_used",
      "revoked"}], "owners": [{"owner", "keys", "runs", "checkpoints", "last_used"}]}
    """
    from tinkex.server.admin import list_keys, list_owners

    rows: list[dict[str, Any]] = [
        {
            "key_id": key.key_id,
            "name": key.name,
            "owner": key.owner,
            "key": f"tml-…{key.tail}",
            "created": _time(key.created_at),
            "last_used": _time(key.used_at),
            "revoked": _time(key.revoked_at),
        }
        for key in list_keys(data_dir, database_url)
    ]
    owners: list[dict[str, Any]] = [
        {
            "owner": each.owner,
            "keys": each.num_keys,
            "runs": each.num_runs,
            "checkpoints": each.num_checkpoints,
            "last_used": _time(each.used_at),
        }
        for each in list_owners(data_dir, database_url)
    ]
    if is_json:
        print_json({"keys": rows, "owners": owners})
    elif rows:
        print_table([tuple(row.values()) for row in rows], header=tuple(rows[0]))
        click.echo()
        print_table([tuple(each.values()) for each in owners], header=tuple(owners[0]))
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


@command.command(name="rotate-signing")
@click.option(
    "--overlap-s",
    type=FiniteRange(min=0, max=_MAX_OVERLAP_S),
    default=_OVERLAP_S,
    show_default=True,
    help="Seconds for which signatures of the old secret are still accepted; 0 after a leak.",
)
@data_dir_option
@signing_secret_option
@json_option
def rotate_signing(
    overlap_s: float, data_dir: Path, signing_secret_file: Path | None, is_json: bool
) -> None:
    """Replace the secret that signs tokens and download links.

    With the default overlap clients notice nothing: their tokens end and are renewed before the old
    secret does. With --overlap-s 0 all tokens and links end at once; clients that run exchange
    their key again when they are started anew. Keys stay as they are.

    \b
    Examples:
      tinkex keys rotate-signing
      tinkex keys rotate-signing --overlap-s 0

    \b
    JSON: {"file", "overlap_s"}
    """
    from tinkex.server.admin import rotate_signing as rotate

    path = rotate(data_dir, signing_secret_file, overlap_s)
    if is_json:
        print_json({"file": str(path), "overlap_s": overlap_s})
        return
    end = f"accepted for {overlap_s:g} seconds more" if overlap_s else "refused from now on"
    say(f"{path} has a new secret; what the old one signed is {end}.")
    say("A running server takes notice within two seconds.")


def _say_whose(owner: Owner, *, is_chosen: bool) -> None:
    """Prints whose work a new key sees, and how to get a key for a new owner if that
    was the default."""
    work = f"{counted(owner.num_runs, 'run')}, {counted(owner.num_checkpoints, 'checkpoint')}"
    say(f"It is for owner {owner.owner} ({work}) and sees all of that owner's work.")
    if not is_chosen and owner.num_keys > 1:
        say("For a key that sees none of it: tinkex keys create --new-owner")


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
