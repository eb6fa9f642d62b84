"""`tinkex auth`: stores a server's key for this user, for all terminals.

The key is never an argument: the list of processes and the shell's history show those to others.
"""

from __future__ import annotations

import sys
from functools import reduce
from pathlib import Path
from typing import Any

import click

from tinkex.cli.options import first_line, json_option, quick
from tinkex.cli.output import print_json, print_table, say
from tinkex.config import Config, credentials_path, normalize_base_url
from tinkex.credentials import Credentials, read, update
from tinkex.telemetry.redaction import mask_secret

_server_option = click.option(
    "--base-url",
    metavar="URL",
    help="The server.  [default: TINKER_BASE_URL, or the last login, or the hosted service]",
)


@click.group(short_help="Log in to a server, and out.")
def command() -> None:
    """Keep a server's key for this user, so that programs and commands find it by themselves.

    Keys are kept in credentials.json beside config.toml, readable for you alone, one for each
    server; TINKEX_CREDENTIALS_FILE names another file. A key given as an argument, in the
    environment or in a settings file wins over a stored one.
    """


@command.command()
@_server_option
@click.option(
    "--api-key-file",
    "--key-file",
    metavar="FILE",
    help="Read the key from a file; '-' is stdin.  [default: prompt, hidden]",
)
def login(base_url: str | None, api_key_file: str | None) -> None:
    """Check a key with its server and keep it for this user.

    Prompts for the key without showing it, or reads it from a file or from stdin if that is no
    terminal. The server becomes the one that is used where none is named.

    \b
    Examples:
      tinkex auth login --base-url http://127.0.0.1:8000
      tinkex keys create | tinkex auth login --base-url http://127.0.0.1:8000
    """
    url = normalize_base_url(Config(base_url=base_url).base_url)
    config = Config(base_url=url, api_key=_given_key(url, api_key_file))
    check_key(config)
    path = store_key(url, config.require_api_key())
    say(f"Logged in to {url}. The key {_masked(config)} is in {path}, readable for you alone.")
    _say_what_wins(url, path)


@command.command()
@_server_option
@json_option
def status(base_url: str | None, is_json: bool) -> None:
    """Say which server and key are in force, where they come from, and whether the key is good.

    \b
    Examples:
      tinkex auth status

    \b
    JSON: {"base_url", "base_url_origin", "key": "tml-…TAIL", "key_origin", "is_accepted",
      "credentials_file", "servers": [{"base_url", "key", "is_default"}]}
    """
    config = Config(base_url=base_url)
    path = credentials_path(config)
    shown: dict[str, Any] = {
        "base_url": config.base_url,
        "base_url_origin": config.origin("base_url"),
        "key": _masked(config),
        "key_origin": config.origin("api_key"),
    }
    error = _refusal(config)
    shown |= {"is_accepted": error is None, "credentials_file": str(path)}
    stored = [
        {"base_url": url, "key": mask_secret(key.reveal()), "is_default": url == store.default}
        for store in [read(path) or Credentials()]
        for url, key in store.keys.items()
    ]
    if is_json:
        print_json({**shown, "servers": stored})
    else:
        print_table(list(shown.items()))
        for each in stored:
            mark = "  (default)" if each["is_default"] else ""
            say(f"Stored: {each['base_url']}  {each['key']}{mark}")
    if error is not None:
        raise error


@command.command()
@_server_option
@json_option
def whoami(base_url: str | None, is_json: bool) -> None:
    """Say for which user and organisation the server takes the key in force.

    \b
    Examples:
      tinkex auth whoami

    \b
    JSON: {"user_urn", "org_urn", "email"}
    """
    from tinkex.client.rest import RestClient

    found = RestClient(config=quick(Config(base_url=base_url))).whoami().result()
    shown = {"user_urn": found.user_urn, "org_urn": found.org_urn, "email": found.email}
    if is_json:
        print_json(shown)
    else:
        print_table([(name, value or "-") for name, value in shown.items()])


@command.command()
@_server_option
def key(base_url: str | None) -> None:
    """Print the key in force, for programs that know only the environment.

    \b
    Examples:
      export TINKER_API_KEY=$(tinkex auth key)
    """
    click.echo(Config(base_url=base_url).require_api_key())


@command.command()
@_server_option
@click.option("--all", "is_all", is_flag=True, help="Forget the keys of all servers.")
def logout(base_url: str | None, is_all: bool) -> None:
    """Forget a stored key. The server still takes it: 'tinkex keys revoke' ends it there.

    \b
    Examples:
      tinkex auth logout
      tinkex auth logout --all
    """
    config = Config(base_url=base_url)
    path, url = credentials_path(config), normalize_base_url(config.base_url)
    store = read(path) or Credentials()
    gone = list(store.keys) if is_all else [each for each in store.keys if each == url]
    if not gone:
        raise click.ClickException(f"{path} has no key for {'any server' if is_all else url}.")
    update(path, lambda store: reduce(Credentials.without, gone, store))
    say(f"Forgot the key of {', '.join(gone)}.")


def store_key(url: str, api_key: str) -> Path:
    """Stores the key of a server for this user; returns the file."""
    path = credentials_path(Config())
    update(path, lambda store: store.with_key(normalize_base_url(url), api_key))
    return path


def check_key(config: Config) -> None:
    """Checks whether the server accepts the key.

    Raises:
        TinkexError: it does not, or the server cannot be reached.
    """
    from tinkex.client.service import ServiceClient

    with ServiceClient(config=quick(config)) as service:
        service.get_server_capabilities()


def _given_key(url: str, file: str | None) -> str:
    if file is not None:
        return first_line(file)
    if not sys.stdin.isatty():
        return first_line("-")
    text: str = click.prompt(f"API key for {url}", hide_input=True, err=True)
    return text.strip()


def _refusal(config: Config) -> Exception | None:
    """Returns why the key in force cannot be used; None if it can."""
    from tinkex.errors import TinkexError

    try:
        config.require_api_key()
        check_key(config)
    except TinkexError as error:
        return error
    return None


def _masked(config: Config) -> str | None:
    return None if config.api_key is None else mask_secret(config.api_key)


def _say_what_wins(url: str, path: Path) -> None:
    """Prints a warning if commands in this terminal use another key or server than
    the stored one."""
    config, here = Config(), f"file {path}"
    for name, is_stored in (
        ("api_key", config.origin("api_key") == here),
        ("base_url", normalize_base_url(config.base_url) == url),
    ):
        if not is_stored:
            say(f"Here another {name} wins over it: {config.origin(name)}.")
