"""`tinkex worker`: an engine on this machine for a server on another one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import click

from tinkex.cli.data_dir import data_dir_option
from tinkex.cli.engine_options import device_option, dtype_option, loss_option


@click.command(short_help="Run an engine for a server elsewhere.")
@click.option(
    "--join",
    required=True,
    metavar="HOST:PORT",
    envvar="TINKEX_JOIN",
    help="Where a server listens for workers (tinkex serve --listen-workers).",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    required=True,
    envvar="TINKEX_WORKER_TOKEN_FILE",
    help="A copy of the file worker-token in the server's data folder.",
)
@click.option(
    "--model",
    "model_texts",
    multiple=True,
    required=True,
    envvar="TINKEX_MODEL",
    metavar="NAME=PATH_OR_ID",
    help="A base model under the name that the server serves it by; may be given several times.",
)
@click.option(
    "--name", show_default="host and process id", help="What the server calls this worker."
)
@click.option(
    "--role",
    default="train,sample",
    show_default=True,
    envvar="TINKEX_WORKER_ROLE",
    help="What the worker is for: train, sample, or both.",
)
@device_option
@dtype_option
@click.option(
    "--num-threads",
    type=click.IntRange(min=1),
    envvar="TINKEX_NUM_THREADS",
    help="Threads of the engine.",
)
@loss_option
@click.option(
    "--tls-ca",
    metavar="FILE",
    envvar="TINKEX_WORKER_TLS_CA",
    help="Encrypt the connection, and trust the certificates in this file; `system` trusts those "
    "of the system.",
)
@data_dir_option
def command(
    join: str,
    token_file: Path,
    model_texts: tuple[str, ...],
    name: str | None,
    role: str,
    device: str,
    dtype: str,
    num_threads: int | None,
    losses: tuple[str, ...],
    tls_ca: str | None,
    data_dir: Path,
) -> None:
    """Run an engine on this machine that works for a server on another one.

    It dials in, and dials again when the connection ends; the base models stay loaded. It reads and
    writes folders where the server keeps them: in its --depot.

    \b
    Example:
      tinkex worker --join head:8001 --token-file worker-token --model qwen=/models/qwen3-8b
    """
    from tinkex.server.config import ServedModel
    from tinkex.server.models.worker_command import parse_roles, worker_command

    argv, environment = worker_command(
        join=join,
        models=tuple(ServedModel.parse(text) for text in model_texts),
        data_dir=data_dir,
        token_file=token_file,
        name=name or f"{socket.gethostname()}-{os.getpid()}",
        device=device,
        dtype=dtype,
        num_threads=num_threads,
        losses=losses,
        roles=parse_roles(role),
        tls_ca="" if tls_ca == "system" else tls_ca,
    )
    os.execve(argv[0], argv, environment)  # noqa: S606  # nosec B606 # our own interpreter
