"""`tinkex config`: the settings in force, and where each came from."""

from __future__ import annotations

import json
from typing import Any

import click

from tinkex.cli.options import config_from, connection_options, json_option
from tinkex.cli.output import print_json, print_table


@click.group(short_help="Show the settings and where they come from.")
def command() -> None:
    """Show the settings and where they come from.

    Each is taken from the first of: option, environment, tinkex.toml in this directory, the
    user's config.toml, default. A key that none of them has is that of 'tinkex auth login'.
    """


@command.command()
@click.option("--origin", "has_origin", is_flag=True, help="Say where each setting came from.")
@connection_options
@json_option
def show(has_origin: bool, is_json: bool, **connection: Any) -> None:
    """Print every setting as it is in force here; secrets are masked.

    \b
    Examples:
      tinkex config show --origin
      TINKEX_TIMEOUT_S=5 tinkex config show --json

    \b
    JSON: {SETTING: VALUE}; with --origin {SETTING: {"value", "origin"}}
    """
    config = config_from(**connection)
    values = config.as_dict()
    origins = {name: config.origin(name) for name in values}
    if is_json:
        both = {name: {"value": values[name], "origin": origins[name]} for name in values}
        print_json(both if has_origin else values)
        return
    print_table(
        [
            (name, _shown(value), *([f"({origins[name]})"] if has_origin else []))
            for name, value in values.items()
        ]
    )


def _shown(value: object) -> object:
    """Formats lists, mappings and truth values as in JSON, other values as they are."""
    is_structured = isinstance(value, bool | list | dict)
    return json.dumps(value, ensure_ascii=False) if is_structured else value
