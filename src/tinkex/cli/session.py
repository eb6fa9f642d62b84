"""`tinkex session`: exports the trace of a session."""

from __future__ import annotations

from typing import Any

import click

from tinkex.cli.options import connection_options, json_option, reached_config
from tinkex.cli.output import print_json, say


@click.group(short_help="Export the trace of a session.")
def command() -> None:
    """Export the trace of a session."""


@command.command("export-trace", short_help="Download a session's trace.")
@click.argument("session_id", metavar="SESSION")
@click.option("-o", "--output", metavar="FILE", help="Where to.  [default: SESSION.pftrace]")
@click.option("--url-only", "is_url_only", is_flag=True, help="Print the address of the trace.")
@json_option
@connection_options
def export_trace(
    session_id: str, output: str | None, is_url_only: bool, is_json: bool, **connection: Any
) -> None:
    """Download the trace of a session's requests, to be opened in https://ui.perfetto.dev.

    Servers of your own record none.

    \b
    Examples:
      tinkex session export-trace SESSION
      tinkex session export-trace SESSION --url-only

    \b
    JSON: {"session_id", "url"} or {"session_id", "path"}
    """
    from pathlib import Path

    from tinkex.client.rest import RestClient

    rest = RestClient(config=reached_config(**connection))
    if is_url_only:
        key, result = "url", rest.export_session_trace(session_id).result()
    else:
        path = Path(output or f"{session_id.replace('/', '_')}.pftrace").expanduser()
        say("Waiting for the trace…")
        key, result = "path", str(rest.download_session_trace(session_id, path).result())
    if is_json:
        print_json({"session_id": session_id, key: result})
    else:
        click.echo(result)
