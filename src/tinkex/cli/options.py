"""Options that several commands share, and the Config made of them.

Options are only passed on: defaults, the environment and files are Config's business.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tinkex.cli.output import say

if TYPE_CHECKING:
    from tinkex.config import Config

Command = TypeVar("Command", bound=Callable[..., Any])

QUICK_BUDGET_S = 1.0


class _Finite:
    """Refuses nan and infinity, which a range accepts; a mixin before a type of click's."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number."""
        number = super().convert(value, param, ctx)  # type: ignore[misc]
        if not math.isfinite(number):
            raise click.BadParameter(f"{value} is not a finite number.", ctx, param)
        return number


class FiniteFloat(_Finite, click.types.FloatParamType):
    """Any number."""


class FiniteRange(_Finite, click.FloatRange):
    """A number within bounds."""


limit_option = click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="At most so many; 0 is all.",
)
json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")

_CONNECTION = (
    click.option(
        "--api-key-file",
        metavar="FILE",
        help="Read the API key from a file; '-' is stdin.",
    ),
    click.option(
        "--api-key",
        metavar="KEY",
        help="The API key; others on this machine can see it.  [default: TINKER_API_KEY, or that "
        "of 'tinkex auth login']",
    ),
    click.option("--base-url", metavar="URL", help="The server.  [default: TINKER_BASE_URL]"),
    click.option(
        "--timeout", "timeout_s", type=float, metavar="SECONDS", help="Time one request may take."
    ),
)
_LORA = (
    click.option(
        "--rank",
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        metavar="N",
        help="Size of the adapter.",
    ),
    click.option("--seed", type=int, metavar="N", help="For the same first weights again."),
    click.option("--train-mlp/--no-train-mlp", default=True, help="Adapt the MLP layers.  [yes]"),
    click.option("--train-attn/--no-train-attn", default=True, help="Adapt attention.  [yes]"),
    click.option(
        "--train-unembed/--no-train-unembed", default=True, help="Adapt the output layer.  [yes]"
    ),
)
LORA_NAMES = ("rank", "seed", "train_mlp", "train_attn", "train_unembed")


def _with(options: tuple[Callable[[Command], Command], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def connection_options(command: Command) -> Command:
    """Adds `--api-key-file`, `--api-key`, `--base-url`, `--timeout`; see `config_from`."""
    return _with(_CONNECTION, command)


def lora_options(command: Command) -> Command:
    """Adds the options of a new adapter: `LORA_NAMES`."""
    return _with(_LORA, command)


def config_from(
    api_key: str | None,
    base_url: str | None,
    timeout_s: float | None,
    api_key_file: str | None = None,
) -> Config:
    """Returns the Config for the options of `connection_options`.

    Raises:
        click.UsageError: the key is given twice.
    """
    from tinkex.config import Config

    if api_key is not None and api_key_file is not None:
        raise click.UsageError("Give --api-key or --api-key-file, not both.")
    if api_key is not None:
        say(
            "Warning: --api-key shows in the list of processes; "
            "'tinkex auth login', TINKER_API_KEY and --api-key-file do not."
        )
    if api_key_file is not None:
        api_key = first_line(api_key_file)
    return Config(api_key=api_key, base_url=base_url, timeout_s=timeout_s)


def quick_config(**connection: Any) -> Config:
    """Like `config_from`, for interactive commands: they time out after seconds."""
    return quick(config_from(**connection))


def reached_config(**connection: Any) -> Config:
    """Like `config_from`, for longer work: long timeouts, after one check that the server answers.

    Raises:
        TinkexError: the server cannot be reached, or refuses the key.
    """
    from tinkex.client.service import ServiceClient

    config = config_from(**connection)
    with ServiceClient(config=quick(config)) as service:
        service.get_server_capabilities()
    return config


def quick(config: Config) -> Config:
    """Returns the config with short timeouts, unless they are set."""
    if config.origin("retry_budget_s") != "default":
        return config
    return config.replace(retry_budget_s=QUICK_BUDGET_S)


def one_model(base_model: str | None, model_path: str | None) -> None:
    """Checks that exactly one model is named.

    Raises:
        click.UsageError: no model is named, or two are.
    """
    if base_model is not None and model_path is not None:
        raise click.UsageError("Give --base-model or --model-path, not both.")
    if base_model is None and model_path is None:
        raise click.UsageError(
            "Which model? Give --base-model NAME, or --model-path tinker://... for saved weights "
            "('tinkex checkpoint list' shows yours)."
        )


def given_options(context: click.Context, names: tuple[str, ...]) -> list[str]:
    """Returns those of the named parameters that were given on the command
    line, as written there."""
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name or "")
        is click.core.ParameterSource.COMMANDLINE
    ]


def read_text(name: str) -> str:
    """Returns the text of a file, or of stdin for '-'.

    Raises:
        click.UsageError: it is not UTF-8.
    """
    from pathlib import Path

    # As bytes: the locale may have stdin decoded as something else, or without a check.
    content = sys.stdin.buffer.read() if name == "-" else Path(name).expanduser().read_bytes()
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8").read()
    except UnicodeDecodeError:
        raise click.UsageError(f"{_shown(name)} is not UTF-8 text.") from None


def first_line(name: str) -> str:
    """Returns the key on the first line of a file, or of stdin for '-'.

    Raises:
        click.UsageError: there is nothing on it.
    """
    lines = read_text(name).split("\n", 1)
    if not lines[0].strip():
        raise click.UsageError(
            f"There is no API key in {_shown(name)}: it must be on the first line."
        )
    return lines[0].strip()


def _shown(name: str) -> str:
    return "stdin" if name == "-" else name
