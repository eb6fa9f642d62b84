"""`tinkex checkpoint`: make a checkpoint; its commands manage those that exist."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.lazy import ActingGroup, Lazy
from tinkex.cli.options import (
    LORA_NAMES,
    connection_options,
    given_options,
    json_option,
    lora_options,
    reached_config,
)
from tinkex.cli.output import print_json, say, write_atomically

if TYPE_CHECKING:
    from tinkex.client.service import ServiceClient
    from tinkex.client.training import TrainingClient


@click.group(
    cls=ActingGroup,
    lazy={
        "delete": Lazy("tinkex.cli.checkpoint_delete:delete", "Delete checkpoints, for good."),
        "download": Lazy("tinkex.cli.checkpoint_download:download", "Download the weights."),
        "info": Lazy("tinkex.cli.checkpoint_list:info", "Show one checkpoint."),
        "list": Lazy("tinkex.cli.checkpoint_list:list_checkpoints", "List checkpoints."),
        "merge": Lazy(
            "tinkex.cli.checkpoint_merge:merge", "Download a model with a checkpoint in it."
        ),
        "publish": Lazy("tinkex.cli.checkpoint_change:publish", "Let all tenants use checkpoints."),
        "push-hf": Lazy("tinkex.cli.checkpoint_push:push_hf", "Upload to the Hugging Face Hub."),
        "set-ttl": Lazy("tinkex.cli.checkpoint_change:set_ttl", "Set when checkpoints expire."),
        "unpublish": Lazy("tinkex.cli.checkpoint_change:unpublish", "Make checkpoints private."),
    },
    aliases={"ls": "list", "rm": "delete", "show": "info"},
    short_help="Make and manage saved weights.",
)
@click.option("--base-model", metavar="NAME", help="The model to adapt.")
@click.option("--model-path", metavar="PATH", help="Saved weights to begin with: tinker://...")
@lora_options
@click.option("--name", help="The checkpoint's name.  [default: the time]")
@click.option("--output", metavar="FILE", help="Write the metadata there, as JSON.")
@json_option
@connection_options
@click.pass_context
def command(
    context: click.Context,
    /,
    base_model: str | None,
    model_path: str | None,
    name: str | None,
    output: str | None,
    is_json: bool,
    **options: Any,
) -> None:
    """Make a checkpoint to sample from, or manage those that exist.

    Creates a LoRA adapter (new, or from saved weights), saves its weights for sampling, and
    prints the checkpoint's path. Nothing is downloaded: see 'tinkex checkpoint download'.

    \b
    Examples:
      tinkex checkpoint --base-model smollm2-135m --rank 16 --output checkpoint.json
      tinkex checkpoint list
      tinkex checkpoint delete --before 2026-01-01 --dry-run

    \b
    JSON, also of --output: {"model_id", "path", "timestamp", "base_model", "model_path",
      "lora": {"rank", "seed", "train_mlp", "train_attn", "train_unembed"} or null}
    """
    if context.invoked_subcommand:
        return
    lora = {each: options.pop(each) for each in LORA_NAMES}
    if base_model is None and model_path is None:
        raise click.UsageError(
            "Give --base-model NAME or --model-path tinker://..., or a command: "
            f"{', '.join(_group(context).list_commands(context))}."
        )
    if model_path is not None and (given := given_options(context, LORA_NAMES)):
        raise click.UsageError(f"{given[0]} is fixed by the weights of --model-path: leave it out.")
    metadata = _create(
        reached_config(**options), base_model, model_path, lora, name or f"{_now():%Y%m%d-%H%M%S}"
    )
    if output is not None:
        write_atomically(Path(output).expanduser(), json.dumps(metadata, indent=2) + "\n")
        say(f"Metadata written to {output}.")
    if is_json:
        print_json(metadata)
    else:
        click.echo(metadata["path"])
        say(f'Sample from it: tinkex run --model-path {metadata["path"]} --prompt "..."')


def _group(context: click.Context) -> ActingGroup:
    assert isinstance(context.command, ActingGroup)
    return context.command


def _create(
    config: Any, base_model: str | None, model_path: str | None, lora: dict[str, Any], name: str
) -> dict[str, Any]:
    from tinkex.client.service import ServiceClient

    with ServiceClient(config=config) as service:
        say("Creating the adapter…")
        training = _training_client(service, base_model, model_path, lora)
        say("Saving its weights…")
        saved = training.save_weights_for_sampler(name).result()
        return {
            "model_id": training.model_id,
            "path": saved.path,
            "timestamp": _now().isoformat(timespec="seconds"),
            "base_model": base_model,
            "model_path": model_path,
            "lora": None if model_path else lora,
        }


def _training_client(
    service: ServiceClient, base_model: str | None, model_path: str | None, lora: dict[str, Any]
) -> TrainingClient:
    if model_path is not None:
        return service.create_training_client_from_state(model_path, base_model)
    assert base_model is not None
    return service.create_lora_training_client(base_model, **lora)


def _now() -> datetime:
    return datetime.now(UTC)
