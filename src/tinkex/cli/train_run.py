"""The implementation of `tinkex train`: connect, prepare the data, train, report the result."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.options import quick
from tinkex.cli.output import counted, print_json, printable_lines, say
from tinkex.cli.progress import StatusLine
from tinkex.cli.sft_data import DataSet, Example, encode, read_records, sha256_of
from tinkex.cli.sft_loop import StopRequest, Trainer
from tinkex.cli.sft_plan import Plan
from tinkex.cli.sft_run import METRICS_FILE, Options, RunFolder, resume_command
from tinkex.errors import TinkexError, ValidationError

if TYPE_CHECKING:
    from tinkex.client.service import ServiceClient
    from tinkex.client.training import TrainingClient
    from tinkex.config import Config
    from tinkex.tokenizers.tokenizer import Tokenizer


def checked_options(
    data: str, lora: dict[str, Any] | None, shuffle_seed: int, others: dict[str, Any]
) -> Options:
    """Returns the run's options after checking that its data are readable."""
    path = Path(data).expanduser().absolute()
    read_records(path)
    return Options(
        data=str(path),
        data_sha256=sha256_of(path),
        lora=lora,
        shuffle_seed=shuffle_seed,
        **others,
    )


def new_folder(output: str | None, options: Options) -> RunFolder:
    """Returns the folder for a new run, named after its data unless a name is given."""
    if output is not None:
        return RunFolder.create(Path(output).expanduser(), options)
    name = f"{Path(options.data).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    return RunFolder.create(Path("tinkex-runs") / name, options)


def open_folder(name: str) -> RunFolder:
    """Returns the folder of an earlier run."""
    return RunFolder.open(Path(name).expanduser())


def run(config: Config, folder: RunFolder, *, is_json: bool) -> None:
    from tinkex.client.service import ServiceClient

    _check_resumable(folder)
    context_length = _reach(config, folder.state.options)
    with StatusLine() as status, ServiceClient(config=config) as service:
        status.show("preparing…", is_urgent=True)
        training = _training_client(service, folder)
        data = _encode(folder.state.options, training.get_tokenizer(), context_length)
        _note_data(folder, data)
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


def _note_data(folder: RunFolder, data: DataSet) -> None:
    """Records the summary of the data, or checks that it has not changed."""
    found, state = (len(data.examples), data.num_tokens), folder.state
    known = state.num_examples, state.num_tokens
    if state.checkpoint is None:
        folder.note(num_examples=found[0], num_tokens=found[1])
    elif found != known:
        raise ValidationError(
            f"The data now comes to {found[0]} examples and {found[1]} tokens; "
            f"the run began with {known[0]} and {known[1]}.",
            hint="The tokenizer or the model's context has changed; start a new run from "
            f"--model-path {state.checkpoint}.",
            code="data-changed",
        )


def _reach(config: Config, options: Options) -> int | None:
    """Returns the model's context length, if the server reports it; fails soon without a server."""
    from tinkex.client.service import ServiceClient

    with ServiceClient(config=quick(config)) as service:
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


# Messages ---------------------------------------------------------------------------------------


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
    """Prints which step was saved before the run stopped."""
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
    last_loss = "" if loss is None else f"; the last loss is {loss:.4f}"
    say(f"Trained {counted(state.step, 'step')}{last_loss}.")
    click.echo(state.sampler)
    say(f"Talk to it:   tinkex chat --model-path {state.sampler}")
    say(f'Sample once:  tinkex run --model-path {state.sampler} --prompt "..."')
    say(f"Download it:  tinkex checkpoint download {state.checkpoint}")


def tell_plan(config: Config, options: Options, *, is_json: bool) -> None:
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
        "The first example; what is learned is between » and «:\n"
    )
    marked = (f"»{part['text']}«" if part["is_learned"] else part["text"] for part in shown)
    click.echo(printable_lines("".join(marked)))


def _parts(example: Example, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Returns the example as texts, each learned or not."""
    from itertools import groupby

    pairs = zip(example.tokens, example.is_learned, strict=True)
    return [
        {"text": tokenizer.decode([token for token, _ in group]), "is_learned": is_learned}
        for is_learned, group in groupby(pairs, key=lambda pair: pair[1])
    ]
