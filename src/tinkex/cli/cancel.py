"""`tinkex cancel`: cancels waiting operations and unfinished samples of the caller."""

from __future__ import annotations

from typing import Any

import click

from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import counted, print_json, say


@click.command(short_help="Cancel requests that wait or sample.")
@click.argument("request_id", metavar="[REQUEST_ID]", required=False)
@click.option(
    "--run", "run_id", metavar="RUN", help="What waits of this run; its id or a path of it."
)
@click.option("--samples", "is_samples", is_flag=True, help="All your samples.")
@json_option
@connection_options
def command(
    request_id: str | None, run_id: str | None, is_samples: bool, is_json: bool, **connection: Any
) -> None:
    """Cancel one request, what waits of a run, or all your samples.

    Samples end whether they wait or run. Of training, forward passes and optimizer steps that wait
    are cancelled: each ends with the error 'cancelled' and its number counts as used. What the
    engine has begun, saves and loads run to their end.

    \b
    Examples:
      tinkex cancel 0199d0c8a4b71f00aa55cc33ee77ff11
      tinkex cancel --run RUN
      tinkex cancel --samples

    \b
    JSON: {"samples", "operations"}, how many of each were cancelled
    """
    if sum([request_id is not None, run_id is not None, is_samples]) != 1:
        raise click.UsageError("Give one of REQUEST_ID, --run RUN and --samples.")
    from tinkex.client.rest import RestClient
    from tinkex.wire.paths import TinkerPath

    rest = RestClient(config=quick_config(**connection))
    if request_id is not None:
        done = rest.cancel_request(request_id).result()
    elif run_id is not None:
        is_path = run_id.startswith("tinker://")
        done = rest.cancel_run(TinkerPath.parse(run_id).run_id if is_path else run_id).result()
    else:
        done = rest.cancel_samples().result()
    if is_json:
        print_json(done)
        return
    if not any(done.values()):
        say("Nothing was cancelled: it has ended, or the engine has begun it.")
        return
    parts = [counted(done[name], name[:-1]) for name in ("operations", "samples") if done[name]]
    say(f"Cancelled {' and '.join(parts)}.")
