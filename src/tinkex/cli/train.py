"""`tinkex train`: supervised fine-tuning of a LoRA adapter on a JSONL file."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.options import (
    LORA_NAMES,
    QUICK_BUDGET_S,
    config_from,
    connection_options,
    given_options,
    json_option,
    lora_options,
    one_model,
)
from tinkex.cli.output import counted, print_json, printable_lines, say
from tinkex.cli.progress import StatusLine
from tinkex.cli.sft_data import DataSet, Example, encode, read_records, sha256_of
from tinkex.cli.sft_loop import StopRequest, Trainer
from tinkex.cli.sft_plan import Plan
from tinkex.cli.sft_run import METRICS_FILE, Options, RunFolder, resume_command
from tinkex.errors import TinkexError, ValidationError

if TYPE_CHECKING:
    from tinkex.client.service import ServiceClient
    from tinkex.client.tokenizer import Tokenizer
    from tinkex.client.training import TrainingClient
    from tinkex.config import Config

_KEPT_ON_RESUME = ("resume", "is_json", "api_key", "api_key_file", "base_url", "timeout_s")
_CONNECTION = _KEPT_ON_RESUME[2:]


@click.command(short_help="Fine-tune a model on a JSONL file.")
@click.argument("data", required=False, metavar="DATA.jsonl")
@click.option("--base-model", metavar="NAME", help="The model to adapt.")
@click.option("--model-path", metavar="PATH", help="Saved weights to begin with: tinker://...")
@click.option(
    "--output", metavar="DIR", help="Folder of the run.  [default: tinkex-runs/DATA-TIME]"
)
@click.option("--resume", metavar="DIR", help="Go on with the run in this folder.")
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Stop after N steps.")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, metavar="N")
@click.option(
    "--learning-rate",
    type=click.FloatRange(min=0, min_open=True),
    default=2e-4,
    show_default=True,
    metavar="RATE",
)
@click.option(
    "--schedule",
    type=click.Choice(["constant", "linear", "cosine"]),
    default="linear",
    show_default=True,
    help="How the learning rate falls.",
)
@click.option("--warmup-steps", type=click.IntRange(min=0), default=0, metavar="N")
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
@click.option("--dry-run", "is_dry", is_flag=True, help="Only read the data and tell the plan.")
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
      tinkex train data.jsonl --base-model Qwen/Qwen3-8B
      tinkex train data.jsonl --base-model Qwen/Qwen3-8B --epochs 3 --save-every 50 --output my-run
      tinkex train --resume my-run

    \b
    JSON: {"run_id", "steps", "loss", "checkpoint", "sampler_checkpoint", "output", "metrics"};
      with --dry-run: {"examples", "cut", "skipped", "tokens", "learned_tokens", "steps",
      "first_example": [{"text", "is_learned"}]}
    """
    config = config_from(**{name: options.pop(name) for name in _CONNECTION})
    if resume is not None:
        _refuse_changes(context)
        folder = RunFolder.open(Path(resume).expanduser())
        _run(config, folder, is_json=is_json)
        return
    is_dry, output = options.pop("is_dry"), options.pop("output")
    chosen = _options(context, **options)
    if is_dry:
        _tell_plan(config, chosen, is_json=is_json)
        return
    path = Path(output).expanduser() if output else _default_folder(chosen.data)
    _run(config, RunFolder.create(path, chosen), is_json=is_json)


def _options(context: click.Context, data: str | None, **options: Any) -> Options:
    """The run's options, once the data is known to be readable."""
    if data is None:
        raise click.UsageError(
            "Which data? Name a JSONL file, or --resume DIR to go on with a run."
        )
    one_model(options["base_model"], options["model_path"])
    if options["model_path"] and (given := given_options(context, LORA_NAMES[:1] + LORA_NAMES[2:])):
        raise click.UsageError(f"{given[0]} is fixed by the weights of --model-path: leave it out.")
    lora = {name: options.pop(name) for name in LORA_NAMES}
    path = Path(data).expanduser().absolute()
    read_records(path)
    return Options(
        data=str(path),
        data_sha256=sha256_of(path),
        lora=None if options["model_path"] else lora,
        shuffle_seed=lora["seed"] or 0,
        **options,
    )


def _refuse_changes(context: click.Context) -> None:
    names = tuple(each.name or "" for each in context.command.params)
    fixed = tuple(name for name in names if name not in _KEPT_ON_RESUME)
    if given := given_options(context, fixed):
        raise click.UsageError(
            f"A resumed run keeps its options: leave out {', '.join(given)}. "
            "Start a new one from its checkpoint with --model-path to change them."
        )


def _default_folder(data: str) -> Path:
    return Path("tinkex-runs") / f"{Path(data).stem}-{datetime.now():%Y%m%d-%H%M%S}"


# Running ----------------------------------------------------------------------------------------


def _run(config: Config, folder: RunFolder, *, is_json: bool) -> None:
    from tinkex.client.service import ServiceClient

    _check_resumable(folder)
    context_length = _reach(config, folder.state.options)
    with StatusLine() as status, ServiceClient(config=config) as service:
        status.show("preparing…", is_urgent=True)
        training = _training_client(service, folder)
        data = _encode(folder.state.options, training.get_tokenizer(), context_length)
        _tell_data(data, folder, status)
        trainer = Trainer(training, data.examples, _plan(folder, data), folder, status)
        try:
            with StopRequest(status.say) as stop:
                is_whole = trainer.train(stop)
        except (TinkexError, KeyboardInterrupt) as error:
            _advise(error, folder, status)
            raise
        finally:
            folder.close()
        if not is_whole:
            raise _stopped(folder)
    _tell_end(folder, trainer.loss, data, is_json=is_json)


def _check_resumable(folder: RunFolder) -> None:
    state = folder.state
    if state.is_finished:
        raise ValidationError(
            f"The run in {folder.path} is finished.",
            hint=f"Go on from its weights: --model-path {state.checkpoint}.",
            code="run-finished",
        )
    data = Path(state.options.data)
    if not data.is_file():
        raise ValidationError(
            f"The run's data {data} is gone.", hint="Put it back; a run goes on with its own data."
        )
    if sha256_of(data) != state.options.data_sha256:
        raise ValidationError(
            f"{data} is no longer what the run began with.",
            hint="Put the old file back, or start a new run with --model-path and --output.",
            code="data-changed",
        )


def _reach(config: Config, options: Options) -> int | None:
    """The model's context length, if the server tells; fails soon if the server is not there."""
    from tinkex.client.service import ServiceClient

    if config.origin("retry_budget_s") == "default":
        config = config.replace(retry_budget_s=QUICK_BUDGET_S)
    with ServiceClient(config=config) as service:
        models = service.get_server_capabilities().supported_models
        name = options.base_model
        if name is None and options.model_path is not None:
            rest = service.create_rest_client()
            name = rest.get_weights_info_by_tinker_path(options.model_path).result().base_model
    lengths = [each.max_context_length for each in models if each.model_name == name]
    return lengths[0] if lengths else None


def _training_client(service: ServiceClient, folder: RunFolder) -> TrainingClient:
    state, options = folder.state, folder.state.options
    if state.checkpoint is not None:
        return service.create_training_client_from_state_with_optimizer(state.checkpoint)
    if options.model_path is not None:
        return service.create_training_client_from_state(options.model_path)
    assert options.base_model is not None
    return service.create_lora_training_client(options.base_model, **options.lora or {})


def _encode(options: Options, tokenizer: Tokenizer, context_length: int | None) -> DataSet:
    return encode(
        read_records(Path(options.data)),
        tokenizer,
        is_plain=options.is_plain,
        max_length=options.max_length or context_length,
    )


def _plan(folder: RunFolder, data: DataSet) -> Plan:
    options = folder.state.options
    return _plan_of(options, len(data.examples))


def _plan_of(options: Options, num_examples: int) -> Plan:
    return Plan(
        num_examples=num_examples,
        batch_size=options.batch_size,
        num_epochs=options.epochs,
        seed=options.shuffle_seed,
        learning_rate=options.learning_rate,
        schedule=options.schedule,  # type: ignore[arg-type]  # one of the choices
        warmup_steps=options.warmup_steps,
        max_steps=options.max_steps,
    )


# What is said -----------------------------------------------------------------------------------


def _tell_data(data: DataSet, folder: RunFolder, status: StatusLine) -> None:
    plan = _plan(folder, data)
    status.say(
        f"{counted(len(data.examples), 'example')}, {counted(data.num_tokens, 'token')}, "
        f"{counted(plan.num_steps, 'step')}; "
        f"the run's folder is {folder.path}."
    )
    if data.num_cut:
        status.say(f"Cut for length: {counted(data.num_cut, 'example')}.")
    if data.num_skipped:
        status.say(f"Left out, with nothing to learn: {counted(data.num_skipped, 'example')}.")
    if folder.state.step:
        status.say(f"Going on after step {folder.state.step}.")


class Stopped(KeyboardInterrupt):
    """Ctrl-C, after everything was saved."""

    def __init__(self, hint: str) -> None:
        super().__init__(hint)
        self.hint = hint


def _stopped(folder: RunFolder) -> Stopped:
    state = folder.state
    if state.step == 0:
        return Stopped("Nothing was trained yet.")
    return Stopped(f"Saved after step {state.step}. Go on with: {resume_command(folder.path)}")


def _advise(error: BaseException, folder: RunFolder, status: StatusLine) -> None:
    """Where the run stands after it broke off."""
    if folder.state.checkpoint is None:
        status.say("No checkpoint was saved yet; 'tinkex train --resume' begins anew.")
    else:
        status.say(f"The last saved step is {folder.state.step}.")
    if not (isinstance(error, TinkexError) and error.blame == "user"):
        status.say(f"Go on with: {resume_command(folder.path)}")


def _tell_end(folder: RunFolder, loss: float | None, data: DataSet, *, is_json: bool) -> None:
    state = folder.state
    if is_json:
        print_json(
            {
                "run_id": state.run_id,
                "steps": state.step,
                "loss": loss,
                "checkpoint": state.checkpoint,
                "sampler_checkpoint": state.sampler,
                "output": str(folder.path.absolute()),
                "metrics": str(folder.path.absolute() / METRICS_FILE),
            }
        )
        return
    told = "" if loss is None else f"; the last loss is {loss:.4f}"
    say(f"Trained {counted(state.step, 'step')}{told}.")
    click.echo(state.sampler)
    say(f"Talk to it:   tinkex chat --model-path {state.sampler}")
    say(f'Sample once:  tinkex run --model-path {state.sampler} --prompt "..."')
    say(f"Download it:  tinkex checkpoint download {state.checkpoint}")


def _tell_plan(config: Config, options: Options, *, is_json: bool) -> None:
    from tinkex.client.service import ServiceClient

    context_length = _reach(config, options)
    with ServiceClient(config=config) as service:
        name = options.base_model
        if name is None:
            rest = service.create_rest_client()
            path = options.model_path or ""
            name = rest.get_weights_info_by_tinker_path(path).result().base_model
        tokenizer = service.create_sampling_client(base_model=name).get_tokenizer()
    data = _encode(options, tokenizer, context_length)
    learned = sum(each.num_learned for each in data.examples)
    shown = _parts(data.examples[0], tokenizer)
    steps = _plan_of(options, len(data.examples)).num_steps
    if is_json:
        counts = {"examples": len(data.examples), "cut": data.num_cut, "skipped": data.num_skipped}
        totals = {"tokens": data.num_tokens, "learned_tokens": learned, "steps": steps}
        print_json({**counts, **totals, "first_example": shown})
        return
    click.echo(
        f"{counted(len(data.examples), 'example')} ({data.num_cut} cut, {data.num_skipped} left "
        f"out), {counted(data.num_tokens, 'token')} of which {learned:,} are learned, "
        f"{counted(steps, 'step')}.\n\n"
        "The first example; what is learned stands between » and «:\n"
    )
    marked = (f"»{part['text']}«" if part["is_learned"] else part["text"] for part in shown)
    click.echo(printable_lines("".join(marked)))


def _parts(example: Example, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The example as texts that are learned, or not."""
    from itertools import groupby

    pairs = zip(example.tokens, example.is_learned, strict=True)
    return [
        {"text": tokenizer.decode([token for token, _ in group]), "is_learned": is_learned}
        for is_learned, group in groupby(pairs, key=lambda pair: pair[1])
    ]
