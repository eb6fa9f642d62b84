"""`tinkex workers`: lists the workers of a server, drains one, and resumes it."""

from __future__ import annotations

import time
from typing import Any

import click

from tinkex.cli.lazy import ActingGroup
from tinkex.cli.operator_server import operator_api, operator_options
from tinkex.cli.options import json_option
from tinkex.cli.output import counted, print_json, print_table, say

_LOOK_EVERY_S = 0.5


@click.group(cls=ActingGroup, short_help="See and drain the workers of a server.")
@json_option
@operator_options
@click.pass_context
def command(context: click.Context, /, is_json: bool, **server: Any) -> None:
    """List the workers of a server, and the work that waits for them.

    Needs the server's operator token: the file operator-token in its data folder, or a copy of it
    named by --operator-token-file.

    \b
    Examples:
      tinkex workers
      tinkex workers --base-url http://head:8000 --operator-token-file ./operator-token --json

    \b
    JSON: {"workers": [{"name", "worker", "host", "roles", "models", "state", "since_s",
      "is_draining", "num_models", "num_adapters", "num_samples", "busy", "backlog_s", "doing",
      "busy_s", "num_restarts", "num_snapshots", "num_replayed", "num_samplers"}],
      "waiting": {"train_operations", "train_tokens", "samples", "sample_tokens"}}
    """
    if context.invoked_subcommand is not None:
        return
    found = operator_api(**server).workers()
    if is_json:
        print_json(found)
        return
    if found["workers"]:
        rows = [_row(each) for each in found["workers"]]
        print_table([tuple(row.values()) for row in rows], header=tuple(rows[0]))
    else:
        say("There are no workers now.")
    waiting = found["waiting"]
    operations = counted(waiting["train_operations"], "operation")
    say(
        f"Waiting: {operations} ({counted(waiting['train_tokens'], 'token')}), "
        f"{counted(waiting['samples'], 'sample')} ({counted(waiting['sample_tokens'], 'token')})."
    )


@command.command()
@click.argument("name")
@click.option("--wait", "is_waiting", is_flag=True, help="Return once no work is left on it.")
@json_option
@operator_options
def drain(name: str, is_waiting: bool, is_json: bool, **server: Any) -> None:
    """Move a worker's runs to others and give it no more work.

    Runs continue on other workers; samples that it has begun end on it. Afterwards it can be
    stopped without any work being repeated. It must not be the last worker of its role.

    \b
    Examples:
      tinkex workers drain worker-1
      tinkex workers drain gpu-7 --wait

    \b
    JSON: the worker's entry, as 'tinkex workers --json' has it
    """
    api = operator_api(**server)
    entry = api.drain(name)
    while is_waiting and (entry["num_models"] or entry["num_samples"]):
        time.sleep(_LOOK_EVERY_S)
        entry = api.worker(name)
        _require_draining(entry)
    if is_json:
        print_json(entry)
    elif entry["num_models"] or entry["num_samples"]:
        left = f"{counted(entry['num_models'], 'run')}, {counted(entry['num_samples'], 'sample')}"
        say(f"{name} takes no more work; on it now: {left}. --wait waits until it has none.")
    else:
        say(f"{name} is drained: it has no work and takes none.")


@command.command()
@click.argument("name")
@json_option
@operator_options
def resume(name: str, is_json: bool, **server: Any) -> None:
    """Give a drained worker work again.

    \b
    Examples:
      tinkex workers resume worker-1

    \b
    JSON: the worker's entry, as 'tinkex workers --json' has it
    """
    entry = operator_api(**server).resume(name)
    if is_json:
        print_json(entry)
    else:
        say(f"{name} takes work again.")


def _require_draining(entry: dict[str, Any]) -> None:
    """Raises if the worker was resumed meanwhile, since the wait would never end."""
    if not entry["is_draining"]:
        raise click.ClickException(
            f"{entry['name']} was resumed while it was being drained. Drain it again."
        )


def _row(entry: dict[str, Any]) -> dict[str, object]:
    return {
        "name": entry["name"],
        "host": entry["host"],
        "roles": ",".join(entry["roles"]),
        "state": "draining" if entry["is_draining"] else entry["state"],
        "runs": entry["num_models"],
        "samples": entry["num_samples"],
        "busy": f"{entry['busy']:.0%}",
        "backlog": f"{entry['backlog_s']:.1f} s",
        "models": ",".join(entry["models"]),
        "worker": entry["worker"],
    }
