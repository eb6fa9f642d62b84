"""`tinkex chat`: a conversation with a model, in a terminal."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.failure import as_text
from tinkex.cli.options import (
    connection_options,
    one_model,
    quick_config,
)
from tinkex.cli.output import printable_lines, say, write_atomically
from tinkex.cli.progress import StatusLine
from tinkex.cli.sampling_options import sampling_options, sampling_params
from tinkex.errors import TinkexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tinkex.client.sample_stream import SampleStream
    from tinkex.client.sampling import SamplingClient
    from tinkex.tokenizers.tokenizer import Tokenizer
    from tinkex.types.sampling import SamplingParams

_HELP = """\
/reset         forget the conversation
/system TEXT   set the system message and forget the conversation
/save FILE     write the conversation as a line of training data
/help          this list
/quit          leave (also Ctrl-D)
Ctrl-C         break off the answer"""
_CONNECTION = ("api_key", "api_key_file", "base_url", "timeout_s")


@click.command(short_help="Talk to a model in the terminal.")
@click.option("--base-model", metavar="NAME", help="The model to talk to.")
@click.option("--model-path", metavar="PATH", help="Saved weights to talk to: tinker://...")
@click.option("--system", metavar="TEXT", help="A system message to begin with.")
@sampling_options
@connection_options
def command(
    base_model: str | None, model_path: str | None, system: str | None, **options: Any
) -> None:
    """Talk to a model or to saved weights; /help inside lists what can be done.

    Without a chat template the model continues what you write.

    \b
    Examples:
      tinkex chat --base-model smollm2-135m --temperature 0.7
      tinkex chat --model-path tinker://RUN/sampler_weights/final --system "Be brief."
    """
    one_model(base_model, model_path)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "'tinkex chat' needs a terminal. In a script use "
            "'tinkex run --chat --prompt TEXT' or '--prompt-file -'."
        )
    config = quick_config(**{name: options.pop(name) for name in _CONNECTION})
    params = sampling_params(**options)

    from tinkex.client.service import ServiceClient

    with ServiceClient(config=config) as service:
        client = service.create_sampling_client(model_path=model_path, base_model=base_model)
        chat = Chat(client, client.get_tokenizer(), params, system)
        say(f"Talking to {model_path or base_model}. /help lists commands, Ctrl-D leaves.")
        if not chat.has_template:
            say("The model has no chat template: it continues what you write.")
        talk(chat)


def talk(chat: Chat) -> None:
    """Reads messages and answers them until the end of input."""
    _allow_line_editing()
    while True:
        try:
            text = input("you> ").strip()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo("\n(Ctrl-D or /quit leaves)", err=True)
            continue
        if text.startswith("/"):
            if not chat.obey(text):
                return
        elif text:
            _answer(chat, text)


def _answer(chat: Chat, text: str) -> None:
    try:
        chat.answer(text, _show)
        if chat.was_cut:
            say("(cut at --max-tokens)")
    except KeyboardInterrupt:
        say("(broken off)")
    except TinkexError as error:
        say_lines(as_text(error))


def _show(piece: str) -> None:
    """Prints a piece of an answer at once."""
    click.echo(printable_lines(piece), nl=False)


def say_lines(text: str) -> None:
    """Prints a longer message on stderr."""
    click.echo(printable_lines(text), err=True)


class Chat:
    """A conversation so far, and the settings to continue it."""

    def __init__(
        self,
        client: SamplingClient,
        tokenizer: Tokenizer,
        params: SamplingParams,
        system: str | None = None,
    ) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._params = params
        self._system = system
        self.messages: list[dict[str, str]] = []
        self.was_cut = False
        self.reset()

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template; without one the text is simply continued."""
        return bool(self._tokenizer.chat_template)

    def reset(self) -> None:
        """Drops everything but the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def answer(self, text: str, show: Callable[[str], None]) -> None:
        """Prints the model's answer to a text as it is sampled, and adds both to the conversation,
        also if the answer is interrupted."""
        from tinkex.client.text_stream import TextStream
        from tinkex.types.model_input import ModelInput

        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = ModelInput.from_ints(self._encode(messages))
        text_stream, shown = TextStream(self._tokenizer), ""
        is_over = self.was_cut = False
        try:
            with self._client.sample(prompt, 1, self._params, stream=True) as stream:
                _wait(stream)
                for delta in stream:
                    piece = text_stream.add(delta.tokens)
                    if delta.stop_reason is not None:
                        piece += text_stream.end()
                        is_over = True
                        self.was_cut = delta.stop_reason == "length"
                    shown += piece
                    show(piece)
        finally:
            if shown or is_over:
                show("\n")
                self.messages = [*messages, {"role": "assistant", "content": shown}]

    def _encode(self, messages: list[dict[str, str]]) -> list[int]:
        if not self.has_template:
            return self._tokenizer.encode("".join(each["content"] for each in messages))
        ids: list[int] = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return ids

    def obey(self, text: str) -> bool:
        """Runs a command that begins with a slash; returns False to leave the chat."""
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        if name in ("/quit", "/exit"):
            return False
        if name == "/reset":
            self.reset()
            say("Forgotten.")
        elif name == "/system":
            self._system = rest or None
            self.reset()
            say(
                "Started a new conversation with this system message."
                if rest
                else "Started a new conversation without a system message."
            )
        elif name == "/save" and rest:
            self._save(Path(rest).expanduser())
        else:
            say_lines(_HELP)
        return True

    def _save(self, path: Path) -> None:
        try:
            write_atomically(
                path, json.dumps({"messages": self.messages}, ensure_ascii=False) + "\n"
            )
        except OSError as error:
            say(f"Not saved: {error}")
        else:
            say(f"Saved to {path}.")


def _wait(stream: SampleStream) -> None:
    """Waits for the first tokens, with a status line."""
    started = time.monotonic()
    with StatusLine() as status:
        while not stream.wait(0.1):
            status.show(f"… {time.monotonic() - started:.0f} s")


def _allow_line_editing() -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  importing it is what gives input() a history and editing
