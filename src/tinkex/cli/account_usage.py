"""`tinkex usage`: tokens, engine time and bytes of an account."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

import click

from tinkex.cli.columns import Column, columns_option, csv_option, list_format, show_list
from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import plain, print_json, size_text

if TYPE_CHECKING:
    from tinkex.client.run_calls import UsageGrouping
    from tinkex.types.runs import UsageItem

_GROUPS: Final = ("day", "key", "run", "total")


def _count(number: int) -> str:
    return f"{number:,}"


def _seconds(value: float) -> str:
    return f"{value:,.1f}"


_COUNTS: Final[tuple[Column[Any], ...]] = (
    Column("tokens_trained", "TRAINED", lambda row: row.tokens_trained, _count),
    Column("tokens_sampled", "SAMPLED", lambda row: row.tokens_sampled, _count),
    Column("tokens_scored", "SCORED", lambda row: row.tokens_scored, _count),
    Column("tokens_cached", "CACHED", lambda row: row.tokens_cached, _count),
    Column("engine_seconds", "ENGINE S", lambda row: row.engine_seconds, _seconds),
    Column("bytes_kept", "KEPT", lambda row: row.bytes_kept, size_text),
)
_HEADS: Final[dict[str, tuple[Column[Any], ...]]] = {
    "day": (Column("day", "DAY", lambda row: row.day),),
    "key": (
        Column("key", "KEY", lambda row: row.key),
        Column("key_id", "ID", lambda row: row.key_id),
    ),
    "run": (Column("run", "RUN", lambda row: row.run),),
    "total": (),
}
_DAY = click.DateTime(formats=["%Y-%m-%d"])


@click.command(short_help="Show tokens, engine time, bytes used.")
@click.option(
    "--by", type=click.Choice(_GROUPS), default="day", show_default=True, help="One line for each."
)
@click.option("--run", metavar="RUN", help="Of this run alone.")
@click.option("--from", "first", type=_DAY, metavar="DAY", help="The first day, in UTC.")
@click.option("--to", "last", type=_DAY, metavar="DAY", help="The last day, in UTC.")
@columns_option
@csv_option
@json_option
@connection_options
def command(
    by: str,
    run: str | None,
    first: datetime | None,
    last: datetime | None,
    columns: str | None,
    csv_path: str | None,
    is_json: bool,
    **connection: Any,
) -> None:
    """Show what your account used on a Tinkex server: tokens, engine time and bytes.

    Trained and sampled tokens; scored ones are those of forward and of prompts, cached ones those
    of prompts that did not have to be computed. Days are kept for 400 days.

    \b
    Examples:
      tinkex usage
      tinkex usage --by run --from 2026-07-01 --to 2026-07-31 --csv july.csv
      tinkex usage --by total --run RUN

    \b
    JSON: {"rows": [{"day", "key", "key_id", "run", "tokens_trained", "tokens_sampled",
      "tokens_scored", "tokens_cached", "engine_seconds", "bytes_kept"}]}
    """
    from tinkex.client.rest import RestClient

    shown: tuple[Column[UsageItem], ...] = (*_HEADS[by], *_COUNTS)
    usual = [column.name for column in shown]
    form = list_format(shown, usual, names=columns, csv_path=csv_path, others=[is_json])
    rest = RestClient(config=quick_config(**connection))
    answer = rest.get_usage(
        cast("UsageGrouping", by),
        None if first is None else first.date(),
        None if last is None else last.date(),
        run=run,
    ).result()
    if is_json:
        print_json(plain(answer))
    else:
        show_list(answer.rows, form, if_empty="Nothing was used in that time.")
