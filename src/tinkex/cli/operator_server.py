"""Options that select a server and its operator token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tinkex.cli.data_dir import data_dir_option, operator_token_option

if TYPE_CHECKING:
    from tinkex.client.operator_api import OperatorApi

Command = TypeVar("Command", bound=Callable[..., Any])


def operator_options(command: Command) -> Command:
    """Adds `--base-url`, `--data-dir` and `--operator-token-file`; see `operator_api`."""
    url = click.option(
        "--base-url",
        "--url",
        metavar="URL",
        help="The server.  [default: TINKER_BASE_URL, or that of 'tinkex auth login']",
    )
    return url(data_dir_option(operator_token_option(command)))


def operator_api(
    base_url: str | None, data_dir: Path, operator_token_file: Path | None
) -> OperatorApi:
    """Returns the operator's routes of the server that the options name.

    Raises:
        click.UsageError: they name none.
        ConfigError: there is no token.
    """
    from tinkex.client.operator_api import OperatorApi
    from tinkex.config import Config

    config = Config(base_url=base_url)
    if config.origin("base_url") == "default":  # the hosted service must not get the token
        raise click.UsageError(
            "Which server? Give --base-url URL, or set TINKER_BASE_URL; the operator token is sent "
            "to no default address."
        )
    token = _token(operator_token_file or data_dir / "operator-token")
    return OperatorApi(config.normalized_base_url, token)


def _token(path: Path) -> str:
    """Returns the first word of the file."""
    from tinkex.errors import ConfigError

    try:
        words = path.read_text(encoding="ascii", errors="replace").split()
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no operator token at {path}.",
            hint="Give --data-dir, the server's data folder, or --operator-token-file, a copy of "
            "the file operator-token there.",
            code="no-operator-token",
        ) from error
    if not words or not words[0].isascii():
        raise ConfigError(
            f"There is no operator token in {path}: its first word must be the token.",
            hint="Copy the file operator-token from the server's data folder.",
            code="no-operator-token",
        )
    return words[0]
