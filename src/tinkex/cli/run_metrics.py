"""`tinkex run metrics`: metrics of a run, measured in training or logged by users."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import click

from tinkex.cli.columns import csv_option, write_csv
from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import print_json, print_table, printable, say

if TYPE_CHECKING:
    from tinkex.client.rest import RestClient
    from tinkex.types.runs import RunMetricsResponse

__all__ = ["metrics", "run_id_of", "sparkline"]

_COUNTS: Final = ("index", "step", "time", "tokens")
_BARS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 32
_LOOK_EVERY_S: Final = 1.0
Values = Sequence[int | float | None]


@click.command(short_help="Show the metrics of a run.")
@click.argument("run_id", metavar="RUN")
@click.option("--names", metavar="NAMES", help="Only these, with commas in between.")
@click.option("--follow", "-f", "is_followed", is_flag=True, help="Print points as they come.")
@click.option(
    "--own", "is_own", is_flag=True, help="Leave out the runs that this one was resumed from."
)
@csv_option
@json_option
@connection_options
def metrics(
    run_id: str,
    names: str | None,
    is_followed: bool,
    is_own: bool,
    csv_path: str | None,
    is_json: bool,
    **connection: Any,
) -> None:
    """Show the metrics of a run; RUN is its id, or the path of one of its checkpoints.

    A line for each metric: its last, lowest and highest value, and its course. With --csv or
    --json every point that the server keeps.

    \b
    Examples:
      tinkex run metrics RUN
      tinkex run metrics RUN --names loss_per_token,reward --follow
      tinkex run metrics RUN --csv curve.csv

    \b
    JSON: {"run", "names": [..], "columns": {"index": [..], "step": [..], "time": [..],
      "tokens": [..], NAME: [number or null]}, "thinned"}
    """
    from tinkex.client.rest import RestClient

    if (csv_path is not None) + is_json + is_followed > 1:
        raise click.UsageError("--csv, --json and --follow do not go together.")
    rest, run_id = RestClient(config=quick_config(**connection)), run_id_of(run_id)
    wanted = None if names is None else [each.strip() for each in names.split(",")]
    if is_followed:
        _follow(rest, run_id, wanted, with_chain=not is_own)
        return
    pages = list(_pages(rest, run_id, wanted, after=0, with_chain=not is_own))
    columns = _joined(pages)
    shown = [name for name in columns if name not in _COUNTS]
    if is_json:
        is_thinned = any(page.thinned for page in pages)
        document = {"run": run_id, "names": shown, "columns": columns, "thinned": is_thinned}
        print_json(document)
    elif csv_path is not None:
        write_csv(csv_path, list(columns), list(zip(*columns.values(), strict=True)))
    elif not columns["index"]:
        say("The run has no points yet: each optimizer step adds one.")
    else:
        _show(columns, shown)


def run_id_of(text: str) -> str:
    """Returns the run that an id or the path of a checkpoint names."""
    from tinkex.wire.paths import TinkerPath

    return TinkerPath.parse(text).run_id if text.startswith("tinker://") else text


def sparkline(values: Values, width: int = _WIDTH) -> str:
    """Returns the course of the values in this many characters; missing values are left out.

    >>> sparkline([1.0, None, 2.0, 3.0])
    '▁▅█'
    """
    known = [each for each in values if each is not None]
    count = min(width, len(known))
    bounds = [place * len(known) // count for place in range(count + 1)] if count else []
    means = [sum(known[start:end]) / (end - start) for start, end in pairwise(bounds)]
    low, high = min(means, default=0), max(means, default=0)
    top = len(_BARS) - 1
    places = [(each - low) / (high - low) if high > low else 0.5 for each in means]
    return "".join(_BARS[round(place * top)] for place in places)


def _pages(
    rest: RestClient, run_id: str, names: list[str] | None, *, after: int, with_chain: bool
) -> Iterator[RunMetricsResponse]:
    """Yields all points after the cursor, page by page."""
    while True:
        page = rest.get_run_metrics(run_id, names, after=after, with_chain=with_chain).result()
        yield page
        after = page.cursor
        if not page.has_more:
            return


def _joined(pages: Sequence[RunMetricsResponse]) -> dict[str, list[int | float | None]]:
    """Returns the columns of all pages; a page that lacks a metric adds None values."""
    names = dict.fromkeys(name for page in pages for name in page.columns)
    found: dict[str, list[int | float | None]] = {name: [] for name in names}
    for page in pages:
        count = len(page.columns["index"])
        for name, values in found.items():
            values += page.columns.get(name, [None] * count)
    return found


def _show(columns: dict[str, list[int | float | None]], names: Sequence[str]) -> None:
    rows = []
    for name in names:
        known = [each for each in columns[name] if each is not None]
        if known:
            numbers = (known[-1], min(known), max(known))
            rows.append((name, *map(_number, numbers), sparkline(known)))
    print_table(rows, header=("METRIC", "LAST", "LOWEST", "HIGHEST", "COURSE"))
    steps, tokens = columns["step"][-1], columns["tokens"][-1]
    say(f"{len(columns['index'])} points up to step {steps}, {tokens:,} tokens trained.")


def _follow(rest: RestClient, run_id: str, names: list[str] | None, *, with_chain: bool) -> None:
    """Prints each point, until the run ends or Ctrl-C."""
    after = 0
    while True:
        for page in _pages(rest, run_id, names, after=after, with_chain=with_chain):
            after = page.cursor
            for place in range(len(page.columns["index"])):
                _print_point(page, place)
        status = rest.get_training_run(run_id).result().status
        if status is not None and status.state == "ended":
            say(f"The run is over. {status.reason or ''}".rstrip())
            return
        time.sleep(_LOOK_EVERY_S)


def _print_point(page: RunMetricsResponse, place: int) -> None:
    columns = page.columns
    when = datetime.fromtimestamp(columns["time"][place] or 0, UTC)
    values = [(name, columns[name][place]) for name in page.names]
    known = [f"{printable(name)} {_number(value)}" for name, value in values if value is not None]
    if known:
        click.echo(f"{when:%H:%M:%S}  step {columns['step'][place]}  {'  '.join(known)}")


def _number(value: float) -> str:
    return f"{value:.6g}"
