"""`tinkex run list` and `tinkex run info`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from tinkex.cli.columns import Column, columns_option, csv_option, list_format, show_list
from tinkex.cli.options import connection_options, json_option, limit_option, quick_config
from tinkex.cli.output import plain, print_json, print_table, time_text

if TYPE_CHECKING:
    from tinkex.client.rest import RestClient
    from tinkex.types.checkpoint import TrainingRun
    from tinkex.types.training import LoraConfig

PAGE = 100
COLUMNS: Final[tuple[Column[Any], ...]] = (
    Column("id", "RUN", lambda run: run.training_run_id),
    Column("name", "NAME", lambda run: run.name),
    Column("model", "MODEL", lambda run: run.base_model),
    Column("owner", "OWNER", lambda run: run.model_owner),
    Column("lora", "RANK", lambda run: run.lora_rank),
    Column("updated", "LAST REQUEST", lambda run: run.last_request_time),
    Column("status", "STATUS", lambda run: _status(run)),
    Column("checkpoint", "LAST CHECKPOINT", lambda run: _last(run, "checkpoint_id")),
    Column("checkpoint_time", "SAVED", lambda run: _last(run, "time")),
)
USUAL: Final = ("id", "name", "model", "lora", "updated", "status", "checkpoint")


@click.command("list", short_help="List training runs, newest first.")
@limit_option
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print the ids alone.")
@columns_option
@csv_option
@json_option
@connection_options
def list_runs(
    limit: int,
    is_quiet: bool,
    columns: str | None,
    csv_path: str | None,
    is_json: bool,
    **connection: Any,
) -> None:
    """List training runs, newest first.

    Columns: id, name, model, owner, lora, updated, status, checkpoint, checkpoint_time.

    \b
    Examples:
      tinkex run list --columns id,model,status
      tinkex run list --limit 0 --csv runs.csv

    \b
    JSON: {"runs": [RUN]}; RUN as in 'tinkex run info --json'
    """
    from tinkex.client.rest import RestClient

    others = [is_json, is_quiet]
    form = list_format(COLUMNS, USUAL, names=columns, csv_path=csv_path, others=others)
    runs = list(_all_runs(RestClient(config=quick_config(**connection)), limit))
    if is_json:
        print_json({"runs": plain(runs)})
    elif is_quiet:
        for run in runs:
            click.echo(run.training_run_id)
    else:
        show_list(runs, form, if_empty="There are no training runs. Start one with 'tinkex train'.")


@click.command(short_help="Show one training run.")
@click.argument("run_id", metavar="RUN")
@json_option
@connection_options
def info(run_id: str, is_json: bool, **connection: Any) -> None:
    """Show one training run; RUN is its id, or the path of one of its checkpoints.

    \b
    JSON: {"training_run_id", "base_model", "model_owner", "is_lora", "lora_rank", "corrupted",
      "last_request_time", "last_checkpoint", "last_sampler_checkpoint", "user_metadata", "name",
      "tags", "status": {"state", "reason"}, "latest", "resumed_from", "usage"}
    """
    from tinkex.client.rest import RestClient

    rest = RestClient(config=quick_config(**connection))
    run = (
        rest.get_training_run_by_tinker_path(run_id)
        if run_id.startswith("tinker://")
        else rest.get_training_run(run_id)
    ).result()
    if is_json:
        print_json(plain(run))
        return
    print_table(
        [
            ("run", run.training_run_id),
            ("name", run.name),
            ("model", run.base_model),
            ("owner", run.model_owner),
            ("rank", run.lora_rank),
            *([("alpha", f"{run.lora.alpha:g}")] if run.lora and run.lora.alpha else []),
            *([("trains", ", ".join(_trained(run.lora)))] if run.lora else []),
            ("last request", time_text(run.last_request_time)),
            ("state", _status(run)),
            *([("reason", run.status.reason)] if run.status and run.status.reason else []),
            *([("resumed from", run.resumed_from)] if run.resumed_from else []),
            ("last checkpoint", run.last_checkpoint and run.last_checkpoint.tinker_path),
            (
                "last sampler",
                run.last_sampler_checkpoint and run.last_sampler_checkpoint.tinker_path,
            ),
            *((f"tag {name}", value) for name, value in run.tags.items()),
            *((f"last {name}", value) for name, value in _latest(run)),
            *((f"note {name}", value) for name, value in (run.user_metadata or {}).items()),
        ]
    )


def _trained(lora: LoraConfig) -> list[str]:
    """Returns the names of the parts of the model that have an adapter."""
    parts = {"attention": lora.train_attn, "MLP": lora.train_mlp, "unembedding": lora.train_unembed}
    return [name for name, is_trained in parts.items() if is_trained]


def _all_runs(rest: RestClient, limit: int) -> Iterator[TrainingRun]:
    """Returns runs, page by page, until the limit or the end."""
    seen = 0
    while limit == 0 or seen < limit:
        wanted = min(PAGE, limit - seen) if limit else PAGE
        page = rest.list_training_runs(limit=wanted, offset=seen).result()
        yield from page.training_runs
        seen += len(page.training_runs)
        if not page.training_runs or seen >= page.cursor.total_count:
            return


def _latest(run: TrainingRun) -> list[tuple[str, int | float | None]]:
    return [(name, value) for name, value in (run.latest or {}).items() if name != "time"]


def _status(run: TrainingRun) -> str:
    if run.corrupted or run.status is None:
        return "corrupted" if run.corrupted else "ok"
    return run.status.state


def _last(run: TrainingRun, name: str) -> object:
    last = run.last_checkpoint or run.last_sampler_checkpoint
    return getattr(last, name) if last else None
