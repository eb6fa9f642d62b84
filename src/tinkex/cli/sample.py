"""`tinkex run`: sample from a model; `run list`, `run info` and others look at runs.

Not called run.py: importing that would put a module in the place of `tinkex.cli.run`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tinkex.cli.lazy import ActingGroup, Lazy
from tinkex.cli.options import (
    connection_options,
    json_option,
    one_model,
    quick_config,
    read_text,
)
from tinkex.cli.output import print_json, printable_lines, say, write_atomically
from tinkex.cli.sample_printer import print_samples, sample_foot
from tinkex.cli.sampling_options import sampling_options, sampling_params
from tinkex.errors import TokenizerError

if TYPE_CHECKING:
    from tinkex.client.polling import Queue
    from tinkex.client.sampling import SamplingClient
    from tinkex.tokenizers.tokenizer import Tokenizer
    from tinkex.types.model_input import ModelInput
    from tinkex.types.sampling import SampledSequence


@click.group(
    cls=ActingGroup,
    lazy={
        "info": Lazy("tinkex.cli.run_list:info", "Show one training run."),
        "list": Lazy("tinkex.cli.run_list:list_runs", "List training runs, newest first."),
        "metrics": Lazy("tinkex.cli.run_metrics:metrics", "Show the metrics of a run."),
        "rename": Lazy("tinkex.cli.run_change:rename", "Name a training run."),
        "tag": Lazy("tinkex.cli.run_change:tag", "Tag a training run."),
    },
    aliases={"ls": "list", "show": "info"},
    short_help="Sample from a model; list training runs.",
)
@click.option("--base-model", metavar="NAME", help="The model to sample from.")
@click.option("--model-path", metavar="PATH", help="Saved weights to sample from: tinker://...")
@click.option("--prompt", metavar="TEXT", help="The text to continue.")
@click.option(
    "--prompt-file",
    metavar="FILE",
    help="The prompt from a file ('-' is stdin): text, a JSON list of token ids, or "
    '{"tokens": [...]}. One line end at the end of a text is dropped.',
)
@click.option(
    "--chat", "is_chat", is_flag=True, help="Send the prompt as a user's message of a chat."
)
@sampling_options
@click.option(
    "--num-samples",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many samples.",
)
@click.option("--output", metavar="FILE", help="Write the samples there; '-' is stdout.")
@json_option
@connection_options
@click.pass_context
def command(
    context: click.Context,
    /,
    base_model: str | None,
    model_path: str | None,
    prompt: str | None,
    prompt_file: str | None,
    is_chat: bool,
    num_samples: int,
    output: str | None,
    is_json: bool,
    **options: Any,
) -> None:
    """Sample from a model, or look at training runs.

    For each sample the text, as it is made, why it ended and its average logprob; with --json
    also the tokens and their logprobs, at the end. Ctrl-C ends the samples on the server too.
    Sampling is not retried: a busy server is exit code 5.

    \b
    Examples:
      tinkex run --base-model smollm2-135m --prompt "Once upon a time" --max-tokens 50
      tinkex run --model-path tinker://RUN/sampler_weights/final --chat --prompt "Hello!"
      echo '[1, 2, 3]' | tinkex run --base-model smollm2-135m --prompt-file - --json
      tinkex run list

    \b
    JSON: {"base_model", "model_path", "prompt_tokens": [..], "samples": [{"text",
      "stop_reason": "stop"|"length", "average_logprob", "tokens": [..], "logprobs": [..]}]}
    """
    if context.invoked_subcommand:
        return
    one_model(base_model, model_path)
    read = _read_prompt(prompt, prompt_file, options)
    connection = {name: options.pop(name) for name in list(options) if name in _CONNECTION}
    params = sampling_params(**options)
    config = quick_config(**connection)

    from tinkex.client.service import ServiceClient

    with ServiceClient(config=config) as service:
        client = service.create_sampling_client(model_path=model_path, base_model=base_model)
        model_input, tokenizer = _encode(read, client, is_chat=is_chat)
        client.queue_observer = _tell_queue
        say("Starting sampling…")
        if tokenizer is not None and not is_json and output in (None, "-"):
            with client.sample(model_input, num_samples, params, stream=True) as stream:
                print_samples(stream, tokenizer)
            click.echo()
            say("Done.")
            return
        answer = client.sample(model_input, num_samples, params).result()
        samples = [_described(each, tokenizer) for each in answer.sequences]
    document = {
        "base_model": base_model,
        "model_path": model_path,
        "prompt_tokens": model_input.to_ints(),
        "samples": samples,
    }
    _deliver(document, output, is_json=is_json)
    say("Done.")


_CONNECTION = ("api_key", "api_key_file", "base_url", "timeout_s")


def _tell_queue(queue: Queue) -> None:
    if queue.state != "active":
        why = queue.reason or queue.state.replace("_", " ")
        say(f"Waiting: {why.removesuffix('.')}.")


class Prompt(NamedTuple):
    """The prompt to continue: a text, or token ids."""

    text: str
    tokens: list[int] | None = None


def _read_prompt(prompt: str | None, prompt_file: str | None, options: dict[str, Any]) -> Prompt:
    if prompt is not None and prompt_file is not None:
        raise click.UsageError("Give --prompt or --prompt-file, not both.")
    if prompt is not None:
        return Prompt(prompt)
    if prompt_file is None:
        raise click.UsageError("There is no prompt: give --prompt TEXT or --prompt-file FILE.")
    if prompt_file == "-" and options["api_key_file"] == "-":
        raise click.UsageError("Only one of --prompt-file and --api-key-file can be stdin.")
    text = read_text(prompt_file)
    return Prompt(text.removesuffix("\n").removesuffix("\r"), _tokens_in(text, prompt_file))


def _tokens_in(text: str, name: str) -> list[int] | None:
    """Returns the token ids a file holds, or None if it is a text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, dict) and set(value) == {"tokens"}:
        value = value["tokens"]
    elif not isinstance(value, list):
        return None
    if not (isinstance(value, list) and value and all(type(each) is int for each in value)):
        raise click.UsageError(
            f"{name} holds JSON but no list of token ids such as [1, 2, 3]. "
            "A text goes into the file as it is, or into --prompt."
        )
    return value


def _encode(
    prompt: Prompt, client: SamplingClient, *, is_chat: bool
) -> tuple[ModelInput, Tokenizer | None]:
    from tinkex.types.model_input import ModelInput

    if prompt.tokens is None:
        tokenizer = client.get_tokenizer()
        if not is_chat:
            return ModelInput.from_text(prompt.text, tokenizer), tokenizer
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}], add_generation_prompt=True
        )
        return ModelInput.from_ints(ids), tokenizer
    if is_chat:
        raise click.UsageError("--chat needs a text: the file holds token ids.")
    try:
        return ModelInput.from_ints(prompt.tokens), client.get_tokenizer()
    except TokenizerError as error:
        say(f"Warning: {error.message} There are token ids in the result, but no text.")
        return ModelInput.from_ints(prompt.tokens), None


def _described(sequence: SampledSequence, tokenizer: Tokenizer | None) -> dict[str, Any]:
    tokens, logprobs = sequence.tokens, sequence.logprobs
    return {
        "text": tokenizer.decode(tokens, skip_special_tokens=True) if tokenizer else None,
        "stop_reason": sequence.stop_reason,
        "average_logprob": sum(logprobs) / len(logprobs) if logprobs else None,
        "tokens": tokens,
        "logprobs": logprobs,
    }


def _deliver(document: dict[str, Any], output: str | None, *, is_json: bool) -> None:
    text = json.dumps(document, ensure_ascii=False, indent=2) if is_json else _as_text(document)
    if output is None or output == "-":
        if is_json:
            print_json(document)
        else:
            click.echo(printable_lines(text))
        return
    write_atomically(Path(output).expanduser(), text + "\n")
    say(f"Written to {output}.")


def _as_text(document: dict[str, Any]) -> str:
    parts = []
    for number, sample in enumerate(document["samples"], start=1):
        tokens = sample["tokens"]
        body = sample["text"] if sample["text"] is not None else json.dumps(tokens)
        foot = sample_foot(sample["stop_reason"], sample["logprobs"], len(tokens))
        parts.append(f"Sample {number}:\n{body}\n{foot}")
    return "\n\n".join(parts)
