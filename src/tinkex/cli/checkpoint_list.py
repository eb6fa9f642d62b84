"""`tinkex checkpoint list` and `info`, and how checkpoints are chosen by filters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tinkex.cli.columns import Column, columns_option, csv_option, list_format, show_list
from tinkex.cli.options import connection_options, json_option, limit_option, quick_config
from tinkex.cli.output import plain, print_json, print_table, size_text, time_text
from tinkex.errors import NotFoundError

if TYPE_CHECKING:
    from tinkex.client.rest import RestClient
    from tinkex.types.checkpoint import Checkpoint

Command = TypeVar("Command", bound=Callable[..., Any])

PAGE = 1000
COLUMNS: Final[tuple[Column[Any], ...]] = (
    Column("path", "PATH", lambda each: each.tinker_path),
    Column("id", "ID", lambda each: each.checkpoint_id),
    Column("type", "TYPE", lambda each: each.checkpoint_type),
    Column("size", "SIZE", lambda each: each.size_bytes, size_text),
    Column("made", "MADE", lambda each: each.time),
    Column("expires", "EXPIRES", lambda each: each.expires_at),
    Column("access", "ACCESS", lambda each: "public" if each.public else "private"),
)
USUAL: Final = ("path", "type", "size", "made", "expires", "access")
KINDS = ("weights", "sampler_weights", "external_weights")


def moment(text: str) -> datetime:
    """Parses a date or time in ISO 8601; UTC unless the text has another zone."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time such as 2026-01-31 or 2026-01-31T18:00."
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


_FILTERS = (
    click.option("--run-id", metavar="RUN", help="Those of one training run."),
    click.option("--type", "kind", type=click.Choice(KINDS), help="One kind."),
    click.option("--before", type=moment, metavar="TIME", help="Those made before (ISO, UTC)."),
    click.option("--after", type=moment, metavar="TIME", help="Those made then or later."),
)
FILTER_NAMES = ("run_id", "kind", "before", "after")


def filter_options(command: Command) -> Command:
    """Adds `--run-id`, `--type`, `--before` and `--after`: the fields of `Filters`."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters that select checkpoints."""

    run_id: str | None = None
    kind: str | None = None
    before: datetime | None = None
    after: datetime | None = None

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Returns whether the filters select the checkpoint."""
        when = checkpoint.time if checkpoint.time.tzinfo else checkpoint.time.replace(tzinfo=UTC)
        return (
            (self.kind is None or checkpoint.checkpoint_id.startswith(f"{self.kind}/"))
            and (self.before is None or when < self.before)
            and (self.after is None or when >= self.after)
        )


def chosen(rest: RestClient, filters: Filters, limit: int = 0) -> list[Checkpoint]:
    """Returns the selected checkpoints, at most `limit` of them (0: all)."""
    found: list[Checkpoint] = []
    is_filtered = filters.kind or filters.before or filters.after
    page = min(PAGE, limit) if limit and not is_filtered else PAGE
    for checkpoint in _all_checkpoints(rest, filters.run_id, page):
        if filters.fits(checkpoint):
            found.append(checkpoint)
        if limit and len(found) == limit:
            break
    return found


def _all_checkpoints(rest: RestClient, run_id: str | None, size: int) -> Iterator[Checkpoint]:
    if run_id is not None:
        yield from rest.list_checkpoints(run_id).result().checkpoints
        return
    seen = 0
    while True:
        page = rest.list_user_checkpoints(limit=size, offset=seen).result()
        yield from page.checkpoints
        seen += len(page.checkpoints)
        if not page.checkpoints or page.cursor is None or seen >= page.cursor.total_count:
            return


@click.command("list", short_help="List checkpoints.")
@filter_options
@limit_option
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print the paths alone.")
@columns_option
@csv_option
@json_option
@connection_options
def list_checkpoints(
    run_id: str | None,
    kind: str | None,
    before: datetime | None,
    after: datetime | None,
    limit: int,
    is_quiet: bool,
    columns: str | None,
    csv_path: str | None,
    is_json: bool,
    **connection: Any,
) -> None:
    """List checkpoints, newest first.

    Columns: path, id, type, size, made, expires, access.

    \b
    Examples:
      tinkex checkpoint list --limit 0 --csv checkpoints.csv
      tinkex checkpoint list --run-id RUN
      tinkex checkpoint list -q --type weights | xargs tinkex checkpoint set-ttl --ttl 30d

    \b
    JSON: {"run_id": RUN or null, "checkpoints": [{"checkpoint_id", "checkpoint_type", "time",
      "tinker_path", "size_bytes", "public", "user_metadata", "expires_at"}]}
    """
    from tinkex.client.rest import RestClient

    filters, others = Filters(run_id, kind, before, after), [is_json, is_quiet]
    form = list_format(COLUMNS, USUAL, names=columns, csv_path=csv_path, others=others)
    found = chosen(RestClient(config=quick_config(**connection)), filters, limit)
    if is_json:
        print_json({"run_id": run_id, "checkpoints": plain(found)})
    elif is_quiet:
        for each in found:
            click.echo(each.tinker_path)
    else:
        show_list(found, form, if_empty="There are no such checkpoints. 'tinkex train' makes some.")


@click.command(short_help="Show one checkpoint.")
@click.argument("path")
@json_option
@connection_options
def info(path: str, is_json: bool, **connection: Any) -> None:
    """Show one checkpoint, and what it was trained with.

    \b
    JSON: as in 'tinkex checkpoint list', and "base_model", "is_lora", "lora_rank"
    """
    from tinkex.client.rest import RestClient

    rest = RestClient(config=quick_config(**connection))
    found, weights = find(rest, path), rest.get_weights_info_by_tinker_path(path).result()
    if is_json:
        known = {"base_model": weights.base_model, "is_lora": weights.is_lora}
        print_json({**plain(found), **known, "lora_rank": weights.lora_rank})
        return
    print_table(
        [
            ("path", found.tinker_path),
            ("type", found.checkpoint_type),
            ("model", weights.base_model),
            ("rank", weights.lora_rank),
            ("size", size_text(found.size_bytes)),
            ("made", time_text(found.time)),
            ("expires", time_text(found.expires_at) or "never"),
            ("access", "public" if found.public else "private"),
            *((f"note {name}", value) for name, value in (found.user_metadata or {}).items()),
        ]
    )


def find(rest: RestClient, path: str) -> Checkpoint:
    """Returns the checkpoint at a path.

    Raises:
        NotFoundError: there is no such checkpoint.
    """
    from tinkex.wire.paths import TinkerPath

    parsed = TinkerPath.parse(path)
    for checkpoint in rest.list_checkpoints(parsed.run_id).result().checkpoints:
        if checkpoint.checkpoint_id == parsed.checkpoint_id:
            return checkpoint
    raise NotFoundError(
        f"There is no checkpoint {path}.",
        status=404,
        hint=f"Run 'tinkex checkpoint list --run-id {parsed.run_id}' to see those of its run.",
    )
