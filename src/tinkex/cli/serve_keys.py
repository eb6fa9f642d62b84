"""Messages of `tinkex serve` about keys: the new key, or the owners and how to get another key."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from tinkex.cli.data_dir import default_data_dir
from tinkex.cli.output import counted, printable, time_text
from tinkex.errors import TinkexError

if TYPE_CHECKING:
    from tinkex.server.admin import Owner
    from tinkex.server.config import ServerConfig
    from tinkex.server.process import Started

_OWNERS_SHOWN = 8


class AboutKeys(NamedTuple):
    """The messages about keys at a start, and the key as a shell would take it."""

    lines: list[str]
    value: str


def about_keys(started: Started, config: ServerConfig, is_login: bool) -> AboutKeys:
    """Returns messages about the new key, or the owners; with `is_login` the key is stored
    and not shown."""
    if is_login:
        try:
            return _logged_in(started, config)
        except (TinkexError, OSError) as error:
            hint = getattr(error, "hint", None)
            failed = f"Not logged in: {error.message if isinstance(error, TinkexError) else error}"
            return _told(started, config, [failed, *([f"  {hint}"] if hint else [])])
    return _told(started, config, [])


def _told(started: Started, config: ServerConfig, first: list[str]) -> AboutKeys:
    if started.new_key is None:
        return AboutKeys([*first, *_owner_lines(started.owners, config)], "<your key>")
    # It is the only one that is not revoked: a start makes none otherwise.
    whose = next((f" of {printable(each.owner)}" for each in started.owners if each.num_keys), "")
    lines = [
        f"API key{whose} (shown once, only its hash is kept): {started.new_key}",
        f"To keep it for your user: tinkex auth login --base-url {_reachable(started.url)}",
    ]
    return AboutKeys([*first, *lines], started.new_key)


def _logged_in(started: Started, config: ServerConfig) -> AboutKeys:
    """Stores a key for this address: the new one, one that is stored already, or another."""
    from tinkex.cli.auth import store_key

    url = _reachable(started.url)
    path = store_key(url, started.new_key or _usable_key(url, config))
    lines = [f"Logged in: your programs and commands use this server, by a key in {path}."]
    if started.new_key is None:
        lines += _owner_lines(started.owners, config)
    return AboutKeys(lines, f"$(tinkex auth key --base-url {url})")


def _usable_key(url: str, config: ServerConfig) -> str:
    """Returns a stored key that this server accepts, whatever address it had before;
    else a new one."""
    from tinkex.config import Config, credentials_path
    from tinkex.credentials import Credentials, read
    from tinkex.server.admin import create_key, find_key

    stored = (read(credentials_path(Config())) or Credentials()).keys
    at = (config.data_dir, config.database_url)
    for secret in [*(stored[each] for each in stored if each == url), *stored.values()]:
        if find_key(*at, secret.reveal()) is not None:
            return secret.reveal()
    return create_key(*at, name="login").key


def _reachable(url: str) -> str:
    """Returns the address for clients on this machine, if a server listens on
    all of its addresses."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _owner_lines(owners: list[Owner], config: ServerConfig) -> list[str]:
    shown = owners[:_OWNERS_SHOWN]
    left = len(owners) - len(shown)
    more = [f"  and {left} more: tinkex keys list{_where(config)}"] if left else []
    about = ["Owners, whose keys see their own work only:", *map(_about, shown), *more]
    return [*about, *_way_back(shown, config)]


def _about(owner: Owner) -> str:
    from datetime import UTC, datetime

    counts = (
        counted(owner.num_keys, "key"),
        counted(owner.num_runs, "run"),
        counted(owner.num_checkpoints, "checkpoint"),
    )
    used = "never used"
    if owner.used_at is not None:
        used = f"last used {time_text(datetime.fromtimestamp(owner.used_at, UTC))}"
    return f"  {printable(owner.owner)}: {', '.join(counts)}, {used}"


def _way_back(owners: list[Owner], config: ServerConfig) -> list[str]:
    """Returns the command that makes another key for the same owner."""
    name = shlex.quote(printable(owners[0].owner)) if len(owners) == 1 else "NAME"
    return [
        "Lost a key? This makes another for the same work:",
        f"  tinkex keys create --owner {name}{_where(config)}",
    ]


def _where(config: ServerConfig) -> str:
    """Returns the options by which other commands find this server's store; a URL
    may hold a password."""
    options = ""
    if config.data_dir != default_data_dir():
        options += f" --data-dir {shlex.quote(str(config.data_dir))}"
    if config.database_url is not None:
        options += " --database-url URL"
    return options
