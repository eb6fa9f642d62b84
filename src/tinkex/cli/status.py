"""`tinkex status`: the state of the server on one screen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from tinkex.cli.data_dir import data_dir_option, operator_token_option
from tinkex.cli.operator_server import operator_api
from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import print_json
from tinkex.cli.status_screen import run_lines, status_lines

if TYPE_CHECKING:
    from tinkex.types.checkpoint import TrainingRun

Command = TypeVar("Command", bound=Callable[..., Any])


_NUM_RUNS = 5


class StatusSource(NamedTuple):
    """The source of a server's status: its address, and the request."""

    url: str
    fetch: Callable[[], dict[str, Any]]
    runs: Callable[[], list[TrainingRun]]

    def screen(self, status: dict[str, Any]) -> list[str]:
        """Returns the lines that show a status and the last runs, as wide as the terminal."""
        width = shutil.get_terminal_size().columns
        return [*status_lines(status, self.url, width), *run_lines(self.runs(), width)]


def source_options(command: Command) -> Command:
    """Adds the options that select the server and the credential; see `status_source`."""
    operator = click.option(
        "--operator",
        "is_operator",
        is_flag=True,
        help="Use the operator token instead of an API key: shows every tenant's queue.",
    )
    return connection_options(operator(data_dir_option(operator_token_option(command))))


def status_source(
    *,
    is_operator: bool,
    data_dir: Path,
    operator_token_file: Path | None,
    base_url: str | None,
    **connection: Any,
) -> StatusSource:
    """Returns the status source that the options select; a token file selects
    the operator's view."""
    if is_operator or operator_token_file is not None:
        api = operator_api(base_url, data_dir, operator_token_file)
        return StatusSource(api.base_url, api.status, list)
    from tinkex.client.rest import RestClient

    config = quick_config(base_url=base_url, **connection)
    rest = RestClient(config=config)
    return StatusSource(
        config.normalized_base_url,
        lambda: rest.get_server_status().result().model_dump(mode="json"),
        lambda: rest.list_training_runs(limit=_NUM_RUNS).result().training_runs,
    )


@click.command(short_help="Show what a server does now.")
@json_option
@source_options
def command(is_json: bool, **source: Any) -> None:
    """Show what a server does now: engine, queue, tokens per second, memory, disk, workers.

    With an API key you see your own work and last runs, and totals of all; --operator shows every
    tenant's queue.

    \b
    Examples:
      tinkex status
      tinkex status --operator --base-url http://head:8000 --operator-token-file ./operator-token
      tinkex status --json

    \b
    JSON: {"version", "uptime_s", "state", "models", "engine": {"busy_share", "doing", ...},
      "workers": [{"name", "state", "roles", "doing", "busy_share", ...}],
      "queue": {"training", "sampling", "yours" or "tenants"},
      "tokens_per_s": {"trained", "sampled", "scored"}, "memory", "disk"}
    """
    found = status_source(**source)
    status = found.fetch()
    if is_json:
        print_json(status)
        return
    for line in found.screen(status):
        click.echo(line)
