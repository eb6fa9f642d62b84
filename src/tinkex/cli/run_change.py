"""`tinkex run rename` and `tinkex run tag`."""

from __future__ import annotations

from typing import Any

import click

from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import plain, print_json, say
from tinkex.cli.run_metrics import run_id_of

__all__ = ["rename", "tag"]


@click.command(short_help="Name a training run.")
@click.argument("run_id", metavar="RUN")
@click.argument("name")
@json_option
@connection_options
def rename(run_id: str, name: str, is_json: bool, **connection: Any) -> None:
    """Name a training run, and the runs it is resumed from or by; '' takes the name away.

    \b
    Example:
      tinkex run rename RUN "baseline, lr 1e-4"

    \b
    JSON: as in 'tinkex run info --json'
    """
    from tinkex.client.rest import RestClient

    rest = RestClient(config=quick_config(**connection))
    run = rest.update_run(run_id_of(run_id), name=name).result()
    if is_json:
        print_json(plain(run))
    else:
        say(f"The run is called {run.name!r} now." if run.name else "The run has no name now.")


@click.command(short_help="Tag a training run.")
@click.argument("run_id", metavar="RUN")
@click.argument("tags", metavar="KEY=VALUE...", nargs=-1)
@click.option("--remove", multiple=True, metavar="KEY", help="Take a tag away; may be repeated.")
@json_option
@connection_options
def tag(
    run_id: str, tags: tuple[str, ...], remove: tuple[str, ...], is_json: bool, **connection: Any
) -> None:
    """Tag a training run, and the runs it is resumed from or by. Other tags stay.

    \b
    Example:
      tinkex run tag RUN dataset=gsm8k owner=ana --remove draft

    \b
    JSON: as in 'tinkex run info --json'
    """
    from tinkex.client.rest import RestClient

    changes = dict(_pair(each) for each in tags)
    if not changes and not remove:
        raise click.UsageError("Give KEY=VALUE, or --remove KEY.")
    rest, run_id = RestClient(config=quick_config(**connection)), run_id_of(run_id)
    before = rest.get_training_run(run_id).result().tags
    kept = {key: value for key, value in {**before, **changes}.items() if key not in remove}
    run = rest.update_run(run_id, tags=kept).result()
    if is_json:
        print_json(plain(run))
    else:
        shown = ", ".join(f"{key}={value}" for key, value in run.tags.items())
        say(f"Tags: {shown or 'none'}.")


def _pair(text: str) -> tuple[str, str]:
    key, mark, value = text.partition("=")
    if not mark or not key:
        raise click.UsageError(f"{text!r} is no tag; write KEY=VALUE.")
    return key, value
