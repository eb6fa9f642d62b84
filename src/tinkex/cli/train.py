"""`tinkex train`: supervised fine-tuning of a LoRA adapter on a JSONL file.

This module has its options only, so that its help is quick; `train_run` does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.options import (
    LORA_NAMES,
    FiniteRange,
    config_from,
    connection_options,
    given_options,
    json_option,
    lora_options,
    one_model,
)

if TYPE_CHECKING:
    from tinkex.cli.sft_run import Options

_KEPT_ON_RESUME = ("resume", "is_json", "api_key", "api_key_file", "base_url", "timeout_s")
_CONNECTION = _KEPT_ON_RESUME[2:]


@click.command(short_help="Fine-tune a model on a JSONL file.")
@click.argument("data", required=False, metavar="[DATA.jsonl]")
@click.option("--base-model", metavar="NAME", help="The model to adapt.")
@click.option("--model-path", metavar="PATH", help="Saved weights to begin with: tinker://...")
@click.option(
    "--output", metavar="DIR", help="Folder of the run.  [default: tinkex-runs/DATA-TIME]"
)
@click.option("--resume", metavar="DIR", help="Go on with the run in this folder.")
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How often each example is seen.",
)
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Stop after N steps.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="Examples in a step.",
)
@click.option(
    "--learning-rate",
    type=FiniteRange(min=0, min_open=True),
    default=2e-4,
    show_default=True,
    metavar="RATE",
    help="Size of a step.",
)
@click.option(
    "--schedule",
    type=click.Choice(["constant", "linear", "cosine"]),
    default="linear",
    show_default=True,
    help="How the learning rate falls.",
)
@click.option(
    "--warmup-steps",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Steps in which the learning rate rises.",
)
@click.option(
    "--max-length",
    type=click.IntRange(min=2),
    metavar="TOKENS",
    help="Cut examples to this length.  [default: the model's context]",
)
@click.option(
    "--save-every",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="Checkpoint every N steps; 0 is only at the end.",
)
@click.option(
    "--plain",
    "is_plain",
    is_flag=True,
    help="Do not put prompt/completion pairs into the chat template.",
)
@lora_options
@click.option("--dry-run", "is_dry", is_flag=True, help="Only read the data and show the plan.")
@json_option
@connection_options
@click.pass_context
def command(context: click.Context, /, resume: str | None, is_json: bool, **options: Any) -> None:
    """Fine-tune a model on conversations, with loss on the assistant's words alone.

    A line of the file is {"messages": [{"role", "content"}, ...]} or {"prompt", "completion"};
    both go through the model's chat template. The run's folder gets run.json and metrics.jsonl.
    Ctrl-C finishes the step, saves, and says how to go on; --resume continues with the very next
    batch.

    \b
    Examples:
      tinkex train data.jsonl --base-model smollm2-135m
      tinkex train data.jsonl --base-model smollm2-135m --epochs 3 --save-every 50 --output my-run
      tinkex train --resume my-run

    \b
    JSON: {"run_id", "steps", "loss", "checkpoint", "sampler_checkpoint", "output", "metrics"};
      with --dry-run: {"examples", "cut", "skipped", "tokens", "learned_tokens", "steps",
      "first_example": [{"text", "is_learned"}]}
    """
    from tinkex.cli import train_run

    config = config_from(**{name: options.pop(name) for name in _CONNECTION})
    if resume is not None:
        _refuse_changes(context)
        train_run.run(config, train_run.open_folder(resume), is_json=is_json)
        return
    is_dry, output = options.pop("is_dry"), options.pop("output")
    chosen = _options(context, **options)
    if is_dry:
        train_run.tell_plan(config, chosen, is_json=is_json)
    else:
        train_run.run(config, train_run.new_folder(output, chosen), is_json=is_json)


def _options(context: click.Context, data: str | None, **options: Any) -> Options:
    """Returns the run's options after checking that the data is readable."""
    if data is None:
        raise click.UsageError(
            "Which data? Name a JSONL file, or --resume DIR to go on with a run."
        )
    one_model(options["base_model"], options["model_path"])
    if options["model_path"] and (given := given_options(context, LORA_NAMES[:1] + LORA_NAMES[2:])):
        raise click.UsageError(f"{given[0]} is fixed by the weights of --model-path: leave it out.")
    lora = {name: options.pop(name) for name in LORA_NAMES}
    from tinkex.cli.train_run import checked_options

    is_new = options["model_path"] is None
    return checked_options(data, lora if is_new else None, lora["seed"] or 0, options)


def _refuse_changes(context: click.Context) -> None:
    names = tuple(each.name or "" for each in context.command.params)
    fixed = tuple(name for name in names if name not in _KEPT_ON_RESUME)
    if given := given_options(context, fixed):
        raise click.UsageError(
            f"A resumed run keeps its options: leave out {', '.join(given)}. "
            "Start a new one from its checkpoint with --model-path to change them."
        )
