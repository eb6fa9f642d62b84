"""`tinkex serve`: a server on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tinkex.cli.data_dir import data_dir_option, database_option
from tinkex.cli.options import FiniteFloat
from tinkex.cli.output import say

if TYPE_CHECKING:
    from tinkex.server.process import Started

Command = TypeVar("Command", bound=Callable[..., Any])


def _number_options(command: Command) -> Command:
    """One option for each number that can be set."""
    from tinkex.server.settings import settings

    for setting in reversed(settings()):
        command = click.option(
            setting.flag,
            setting.name,
            type=FiniteFloat() if isinstance(setting.default, float) else int,
            envvar=setting.variable,
            show_default=f"{setting.default:,}".removesuffix(".0"),
            help=setting.about,
        )(command)
    return command


@click.command(short_help="Run a server.")
@click.option(
    "--host",
    envvar="TINKEX_HOST",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; 0.0.0.0 is all.",
)
@click.option(
    "--port", type=int, envvar="TINKEX_PORT", default=8000, show_default=True, help="0 = any."
)
@data_dir_option
@database_option
@click.option(
    "--model",
    "model_texts",
    multiple=True,
    envvar="TINKEX_MODEL",
    metavar="NAME=PATH_OR_ID",
    help="A base model; may be given several times. A bare PATH_OR_ID is its own name.",
)
@click.option(
    "--device",
    envvar="TINKEX_DEVICE",
    default="cpu",
    show_default=True,
    help="Where to compute, as PyTorch names it; null computes nothing.",
)
@click.option(
    "--dtype",
    envvar="TINKEX_DTYPE",
    default="float32",
    show_default=True,
    help="The type of the base weights.",
)
@click.option("--num-threads", type=int, envvar="TINKEX_NUM_THREADS", help="Threads of the engine.")
@click.option("--public-url", envvar="TINKEX_PUBLIC_URL", help="How clients reach this server.")
@click.option(
    "--deterministic",
    "is_deterministic",
    is_flag=True,
    envvar="TINKEX_DETERMINISTIC",
    help="Compute every request alone, so that no neighbour changes a bit.",
)
@click.option(
    "--kernels/--no-kernels",
    "has_kernels",
    envvar="TINKEX_KERNELS",
    default=True,
    show_default=True,
    help="Sample by kernels compiled here, where there is a C compiler.",
)
@click.option(
    "--bootstrap-key", envvar="TINKEX_BOOTSTRAP_KEY", hidden=True, help="A key to accept, tml-..."
)
@_number_options
def command(data_dir: Path, model_texts: tuple[str, ...], **values: Any) -> None:
    """Run a server that the official client, and ours, can train and sample on.

    Without --model it serves SmolLM2-135M, which it fetches once. Every option is also a variable:
    --max-rank is TINKEX_MAX_RANK. TINKEX_BOOTSTRAP_KEY=tml-... makes that key known at start.

    \b
    Examples:
      tinkex serve
      tinkex serve --port 0 --model tiny=./models/tiny --model Qwen/Qwen3-0.6B
    """
    from tinkex.server.early import worker_begun

    with worker_begun(values["device"]) as worker:  # which imports torch, while this goes on here:
        import logging

        from tinkex import crashpoints
        from tinkex.config import process_settings
        from tinkex.server import collecting
        from tinkex.server.config import ServedModel
        from tinkex.server.process import ServerProcess
        from tinkex.server.pull import default_models
        from tinkex.server.settings import make_config

        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
        if model_texts:
            models = tuple(ServedModel.parse(text) for text in model_texts)
            _refuse_twice([model.name for model in models])
        elif values["device"] == "null":
            models = (ServedModel(name="null", source=""),)
        else:
            models = default_models(data_dir, say)
        config = make_config(data_dir, models, values)
        crashpoints.arm(process_settings().crash_at)
        names = [model.name for model in models]
        collecting.look_rarely()
        ServerProcess(config, worker=worker).run(lambda started: _greet(started, names))


def _refuse_twice(names: list[str]) -> None:
    """Two models of one name: only one of them could ever be reached."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise click.BadParameter(f"the name {name!r} is given twice.", param_hint="--model")


def _greet(started: Started, names: list[str]) -> None:
    """Says where the server is and how to use it; a new key is shown this once."""
    click.echo(f"Listening on {started.url}")
    click.echo(f"Models: {', '.join(names)}")
    key = started.new_key or "<your key>"
    if started.new_key is not None:
        click.echo(f"API key (shown once, only its hash is kept): {started.new_key}")
    else:
        say("Keys exist already; 'tinkex keys create' makes another.")
    click.echo(
        f"""
  export TINKER_BASE_URL={started.url}
  export TINKER_API_KEY={key}

  import tinkex  # the official client works the same: import tinker as tinkex
  service = tinkex.ServiceClient()
  training = service.create_lora_training_client(base_model={names[0]!r}, rank=16)
"""
    )
