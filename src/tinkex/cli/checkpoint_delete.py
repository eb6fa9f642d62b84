"""`tinkex checkpoint delete`: with filters, a confirmation, and a dry run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from tinkex.cli.checkpoint_change import as_failures, do_each, end_with
from tinkex.cli.checkpoint_list import Filters, chosen, filter_options
from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import confirm, print_json, say, size_text

SHOWN = 10


@click.command(short_help="Delete checkpoints, for good.")
@click.argument("paths", nargs=-1)
@filter_options
@click.option("-y", "--yes", "is_agreed", is_flag=True, help="Do not prompt.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Only say what would be deleted.")
@json_option
@connection_options
@click.pass_context
def delete(
    context: click.Context,
    /,
    paths: tuple[str, ...],
    run_id: str | None,
    kind: str | None,
    before: datetime | None,
    after: datetime | None,
    is_agreed: bool,
    is_dry: bool,
    is_json: bool,
    **connection: Any,
) -> None:
    """Delete checkpoints, for good: those of the PATHS, or all that fit the filters.

    Prompts first. If some cannot be deleted the others are, and the exit code is not 0.

    \b
    Examples:
      tinkex checkpoint delete tinker://RUN/weights/step-100
      tinkex checkpoint delete --run-id RUN --type weights --dry-run
      tinkex checkpoint delete --before 2026-01-01 --yes

    \b
    JSON: {"deleted_count", "deleted": [PATH], "failed": [{"tinker_path", "error"}]};
      with --dry-run: {"would_delete": [PATH]}
    """
    from tinkex.client.rest import RestClient

    filters = Filters(run_id, kind, before, after)
    if bool(paths) == (filters != Filters()):
        raise click.UsageError(
            "Give PATHS, or filters such as --run-id and --before: one of the two."
        )
    rest = RestClient(config=quick_config(**connection))
    size = None
    if not paths:
        found = chosen(rest, filters)
        paths = tuple(each.tinker_path for each in found)
        size = sum(each.size_bytes or 0 for each in found)
    if is_dry:
        _tell_plan(paths, is_json)
        return
    if not paths:
        say("No checkpoint fits: there is nothing to delete.")
    else:
        _ask(paths, size, is_agreed)
    deleted, failed = do_each(paths, rest.delete_checkpoint_from_tinker_path)
    if is_json:
        counts = {"deleted_count": len(deleted), "deleted": deleted}
        print_json({**counts, "failed": as_failures(failed)})
    elif deleted:
        say(f"Deleted {len(deleted)} of {len(deleted) + len(failed)}.")
    end_with(context, failed, is_json=is_json)


def _tell_plan(paths: Sequence[str], is_json: bool) -> None:
    if is_json:
        print_json({"would_delete": list(paths)})
        return
    for path in paths:
        click.echo(path)
    say(f"Would delete {len(paths)}; nothing was done.")


def _ask(paths: Sequence[str], size_bytes: int | None, is_agreed: bool) -> None:
    if not is_agreed:
        for path in paths[:SHOWN]:
            say(f"  {path}")
        if len(paths) > SHOWN:
            say(f"  … and {len(paths) - SHOWN} more")
    size = f" ({size_text(size_bytes)})" if size_bytes else ""
    what = "this checkpoint" if len(paths) == 1 else f"these {len(paths)} checkpoints"
    confirm(f"Delete {what}{size} for good?", is_agreed=is_agreed)
