"""`tinkex billing`: usage by the hour, and what checkpoints take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from tinkex.cli.columns import (
    Column,
    columns_option,
    csv_option,
    list_format,
    show_list,
    write_csv,
)
from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import plain, print_json, size_text

if TYPE_CHECKING:
    from tinkex.types.billing import BillingUsageEvent, BillingUsageResponse

_UNITS: Final = {"token_count": "tokens", "gigabyte_hours": "GB-hours", "count": "checkpoints"}


def _field(name: str) -> Callable[[Any], object]:
    return lambda row: getattr(row, name)


def _quantity(event: BillingUsageEvent) -> tuple[object, str | None]:
    for name, unit in _UNITS.items():
        if hasattr(event.event_info, name):
            return getattr(event.event_info, name), unit
    return None, None


_USAGE: Final[tuple[Column[Any], ...]] = (
    Column("start", "HOUR", _field("bucket_start")),
    Column("end", "END", _field("bucket_end")),
    Column("type", "TYPE", lambda event: event.event_info.type),
    Column("cached", "CACHED", lambda event: getattr(event.event_info, "cached", None)),
    Column("quantity", "QUANTITY", lambda event: _quantity(event)[0]),
    Column("unit", "UNIT", lambda event: _quantity(event)[1]),
    Column("model", "MODEL", _field("base_model")),
    Column("session", "SESSION", _field("session_id")),
    Column("project", "PROJECT", _field("project_id")),
    Column("user", "USER", _field("user_id")),
    Column("user_name", "NAME", _field("user_name")),
    Column("cost_usd", "COST USD", _field("estimated_cost_usd")),
    Column("usd_per_million_tokens", "USD/M", _field("effective_rate_usd_per_million_tokens")),
    Column("usd_per_gb_month", "USD/GB", _field("effective_rate_usd_per_gigabyte_month")),
)
_USUAL_USAGE: Final = ("start", "type", "quantity", "unit", "model", "session", "cost_usd")
_STORAGE: Final[tuple[Column[Any], ...]] = (
    Column("project", "PROJECT", _field("project_id")),
    Column("owner", "OWNER", _field("org_user_urn")),
    Column("email", "EMAIL", _field("user_email")),
    Column("user_name", "NAME", _field("user_name")),
    Column("checkpoints", "CHECKPOINTS", _field("checkpoint_count")),
    Column("size_bytes", "SIZE", _field("size_bytes"), size_text),
    Column("monthly_cost_usd", "USD/MONTH", _field("estimated_monthly_cost_usd")),
)
_USUAL_STORAGE: Final = ("project", "owner", "checkpoints", "size_bytes", "monthly_cost_usd")


@click.group(short_help="Show usage and storage of an account.")
def command() -> None:
    """Show usage and storage of an account."""


@command.command(short_help="Show usage by the hour.")
@click.argument("starting_on", metavar="FROM")
@click.argument("ending_before", metavar="UNTIL")
@columns_option
@csv_option
@click.option("--sessions-csv", metavar="FILE", help="Write the sessions' notes as CSV as well.")
@json_option
@connection_options
def usage(
    starting_on: str,
    ending_before: str,
    columns: str | None,
    csv_path: str | None,
    sessions_csv: str | None,
    is_json: bool,
    **connection: Any,
) -> None:
    """Show what was used, by the hour: FROM and UNTIL are whole hours, at most 14 days apart.

    Servers of your own have no billing; 'tinkex usage' has tokens and more there.

    \b
    Example:
      tinkex billing usage 2026-07-13T00:00:00Z 2026-07-14T00:00:00Z --csv usage.csv

    \b
    JSON: {"data": [EVENT], "sessions": {ID: {"user_metadata"}}, "cost_data_through"}
    """
    from tinkex.client.rest import RestClient

    form = list_format(_USAGE, _USUAL_USAGE, names=columns, csv_path=csv_path, others=[is_json])
    rest = RestClient(config=quick_config(**connection))
    answer = rest.get_billing_usage(starting_on, ending_before).result()
    if sessions_csv is not None:
        _write_sessions(sessions_csv, answer)
    if is_json:
        print_json(plain(answer))
    else:
        show_list(answer.data, form, if_empty="Nothing was used in that time.")


@command.command("checkpoint-storage", short_help="Show what checkpoints take now.")
@click.option("--project-id", metavar="ID", help="Of one project.")
@columns_option
@csv_option
@json_option
@connection_options
def checkpoint_storage(
    project_id: str | None,
    columns: str | None,
    csv_path: str | None,
    is_json: bool,
    **connection: Any,
) -> None:
    """Show how much storage checkpoints take now, by project and owner.

    \b
    JSON: {"data": [{"project_id", "org_user_urn", "checkpoint_count", "size_bytes", ...}],
      "effective_rate_usd_per_gigabyte_month"}
    """
    from tinkex.client.rest import RestClient

    form = list_format(_STORAGE, _USUAL_STORAGE, names=columns, csv_path=csv_path, others=[is_json])
    rest = RestClient(config=quick_config(**connection))
    answer = rest.get_current_checkpoint_storage_usage(project_id).result()
    if is_json:
        print_json(plain(answer))
    else:
        show_list(answer.data, form, if_empty="There are no checkpoints.")


def _write_sessions(path: str, answer: BillingUsageResponse) -> None:
    import json

    rows = [
        (session_id, json.dumps(session.user_metadata or {}, ensure_ascii=False))
        for session_id, session in answer.sessions.items()
    ]
    write_csv(path, ("session_id", "user_metadata"), rows)
