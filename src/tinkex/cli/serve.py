"""`tinkex serve`: a server on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tinkex.cli.data_dir import (
    data_dir_option,
    database_option,
    depot_option,
    operator_token_option,
    signing_secret_option,
)
from tinkex.cli.engine_options import device_option, dtype_option, loss_option
from tinkex.cli.monitoring_options import monitoring_options
from tinkex.cli.options import FiniteFloat
from tinkex.cli.output import say
from tinkex.server.settings import settings

if TYPE_CHECKING:
    from tinkex.cli.serve_keys import AboutKeys
    from tinkex.server.config import ServerConfig
    from tinkex.server.models.names import ModelNames
    from tinkex.server.process import Started

Command = TypeVar("Command", bound=Callable[..., Any])


def _number_options(command: Command) -> Command:
    """Adds one option for each number that can be set."""
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
    help="Address to listen on; 0.0.0.0 listens on all interfaces.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    envvar="TINKEX_PORT",
    default=8000,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@data_dir_option
@database_option
@click.option(
    "--standby",
    "is_standby",
    is_flag=True,
    envvar="TINKEX_STANDBY",
    help="Wait until no other server leads the PostgreSQL database, then take over.",
)
@signing_secret_option
@operator_token_option
@depot_option
@click.option(
    "--model",
    "model_texts",
    multiple=True,
    envvar="TINKEX_MODEL",
    metavar="NAME=PATH_OR_ID",
    help="A base model; may be given several times. A bare PATH_OR_ID is its own name.",
)
@device_option
@dtype_option
@click.option(
    "--num-threads",
    type=click.IntRange(min=1),
    envvar="TINKEX_NUM_THREADS",
    help="Threads of all workers together.",
)
@click.option(
    "--listen-workers",
    envvar="TINKEX_LISTEN_WORKERS",
    metavar="HOST:PORT",
    help="Let workers on other machines join here (tinkex worker); they need the file worker-token "
    "of the data folder.",
)
@click.option(
    "--ray",
    envvar="TINKEX_RAY",
    metavar="ADDRESS",
    help="Keep workers on the Ray cluster at HOST:PORT, or auto for that of this machine.",
)
@click.option(
    "--samplers",
    envvar="TINKEX_SAMPLERS",
    metavar="MIN:MAX",
    help="With --ray: workers that sample; their number follows what waits.",
)
@click.option(
    "--ray-label",
    "ray_labels",
    multiple=True,
    envvar="TINKEX_RAY_LABEL",
    metavar="KEY=VALUE",
    help="With --ray: use nodes with this label only; may be given several times.",
)
@click.option(
    "--ray-advertise",
    envvar="TINKEX_RAY_ADVERTISE",
    metavar="HOST:PORT",
    help="With --ray: where workers dial in, if not at this machine's address in the cluster.",
)
@click.option(
    "--ray-tls-ca",
    envvar="TINKEX_RAY_TLS_CA",
    metavar="FILE",
    help="With --ray and --workers-tls-cert: the certificates that workers trust, a file on the "
    "nodes; `system` for those of the system.",
)
@click.option(
    "--worker-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TINKEX_WORKER_TOKEN_FILE",
    show_default="worker-token in the data folder, made at the first start",
    help="The token that workers join with, where the platform mounts it or a standby needs the "
    "same one.",
)
@click.option(
    "--workers-tls-cert",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TINKEX_WORKERS_TLS_CERT",
    help="Encrypt the connections of workers with this certificate, a PEM file.",
)
@click.option(
    "--workers-tls-key",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TINKEX_WORKERS_TLS_KEY",
    help="The key of that certificate, unless it is in the same file.",
)
@loss_option
@click.option("--public-url", envvar="TINKEX_PUBLIC_URL", help="How clients reach this server.")
@click.option(
    "--allowed-hosts",
    envvar="TINKEX_ALLOWED_HOSTS",
    metavar="NAME,...",
    default="",
    callback=lambda _context, _parameter, text: tuple(text.replace(",", " ").split()),
    help="Names under which browsers may open the page, beside localhost, IP addresses and that of "
    "--public-url; .example.org for all below it, * for any.",
)
@click.option(
    "--deterministic",
    "is_deterministic",
    is_flag=True,
    envvar="TINKEX_DETERMINISTIC",
    help="Compute every request alone, for bit-identical results whatever else runs.",
)
@click.option(
    "--merging/--no-merging",
    "has_merging",
    envvar="TINKEX_MERGING",
    default=True,
    show_default=True,
    help="Let tenants download base models with their adapters merged into them.",
)
@click.option(
    "--kernels/--no-kernels",
    "has_kernels",
    envvar="TINKEX_KERNELS",
    default=True,
    show_default=True,
    help="Sample with kernels compiled on this machine, if it has a C compiler.",
)
@click.option(
    "--login",
    "is_login",
    is_flag=True,
    envvar="TINKEX_LOGIN",
    help="Keep a key for this server in your credentials file and show none; see 'tinkex auth'.",
)
@click.option(
    "--bootstrap-key", envvar="TINKEX_BOOTSTRAP_KEY", hidden=True, help="A key to accept, tml-..."
)
@click.option(
    "-v",
    "--verbose",
    "verbosity",
    count=True,
    envvar="TINKEX_VERBOSE",
    help="Log one line per request; -vv also logs polls and details.",
)
@click.option(
    "-q", "--quiet", "is_quiet", is_flag=True, envvar="TINKEX_QUIET", help="Log warnings only."
)
@monitoring_options
@_number_options
def command(
    data_dir: Path,
    model_texts: tuple[str, ...],
    is_quiet: bool,
    is_login: bool,
    **values: Any,
) -> None:
    """Run a server that the official client, and ours, can train and sample on.

    Without --model it serves SmolLM2-135M, which it fetches once. Every option is also a variable:
    --max-rank is TINKEX_MAX_RANK. TINKEX_BOOTSTRAP_KEY=tml-... makes that key known at start.

    \b
    Examples:
      tinkex serve
      tinkex serve --login
      tinkex serve --port 0 --model tiny=./models/tiny --model Qwen/Qwen3-0.6B
    """
    from tinkex.server.models.prestart import worker_begun

    device = (
        values["device"] if values["workers"] != 0 and not values["ray"] else "null"
    )  # no engine on this machine
    with worker_begun(device) as worker:  # which imports torch, while this goes on here:
        from tinkex import crashpoints
        from tinkex.cli.serve_keys import about_keys
        from tinkex.config import process_settings
        from tinkex.server.config import ServedModel
        from tinkex.server.models.names import names_of
        from tinkex.server.models.pull import default_models
        from tinkex.server.process import ServerProcess
        from tinkex.server.settings import make_config
        from tinkex.server.upkeep import gc_tuning, malloc_tuning
        from tinkex.server.upkeep.log_setup import log_to_stderr

        log_to_stderr(-1 if is_quiet else values["verbosity"], values["log_format"])
        if model_texts:
            models = tuple(ServedModel.parse(text) for text in model_texts)
            _refuse_twice([model.name for model in models])
        elif values["device"].partition(":")[0] == "null":
            models = (ServedModel(name="null", source=""),)
        else:
            models = default_models(data_dir, say)
        settings_of_process = process_settings()
        values["otel_endpoint"] = values["otel_endpoint"] or settings_of_process.otel_endpoint
        config = make_config(data_dir, models, values)
        crashpoints.arm(settings_of_process.crash_at)
        names = names_of(models)
        gc_tuning.tune_collector()
        malloc_tuning.return_large_blocks()
        process = ServerProcess(config, worker=worker)
        process.run(
            on_listening=lambda started: _report(config, started),
            on_ready=lambda started: _greet(started, names, about_keys(started, config, is_login)),
        )


def _refuse_twice(names: list[str]) -> None:
    """Refuses two models of one name, since only one of them could be reached."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise click.BadParameter(f"the name {name!r} is given twice.", param_hint="--model")


def _report(config: ServerConfig, started: Started) -> None:
    """Logs what the server uses, before its models are loaded."""
    import logging

    from tinkex.server.upkeep.start_report import start_report

    for line in start_report(config, started.url):
        logging.getLogger("tinkex.server").info(line)


def _greet(started: Started, names: list[ModelNames], keys: AboutKeys) -> None:
    """Prints the server's address and how to use it; a new key is shown only here.

    Raises:
        ConfigError: it cannot be written, so that nothing would know the key.
    """
    from tinkex.errors import ConfigError

    try:
        _print_greeting(started, names, keys)
    except OSError as error:
        raise ConfigError(
            "The server's address and key could not be written to its standard output: "
            f"{error.strerror or error}.",
            hint="Start it with a standard output that can be written, such as a file.",
            code="stdout-unusable",
        ) from error


def _print_greeting(started: Started, names: list[ModelNames], keys: AboutKeys) -> None:
    click.echo(f"Listening on {started.url}")
    click.echo(f"Models: {'; '.join(str(each) for each in names)}")
    for line in keys.lines:
        click.echo(line)
    click.echo(
        f"""
  export TINKER_BASE_URL={started.url}
  export TINKER_API_KEY={keys.value}

  import tinkex  # the official client works the same: import tinker as tinkex
  service = tinkex.ServiceClient()
  training = service.create_lora_training_client(base_model={names[0].name!r}, rank=16)
"""
    )
