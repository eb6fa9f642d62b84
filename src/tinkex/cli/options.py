"""Options that several commands share, and the Config made of them.

Options are only passed on: defaults, the environment and files are Config's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tinkex.config import Config

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")

_CONNECTION = (
    click.option("--api-key", help="The API key.  [default: TINKER_API_KEY]"),
    click.option("--base-url", help="The server.  [default: TINKER_BASE_URL]"),
    click.option(
        "--timeout", "timeout_s", type=float, metavar="SECONDS", help="Time one request may take."
    ),
)


def connection_options(command: Command) -> Command:
    """Adds `--api-key`, `--base-url` and `--timeout`; make them a Config with `config_from`."""
    for option in reversed(_CONNECTION):
        command = option(command)
    return command


def config_from(api_key: str | None, base_url: str | None, timeout_s: float | None) -> Config:
    """The Config for the options of `connection_options`."""
    return Config(api_key=api_key, base_url=base_url, timeout_s=timeout_s)
