"""The command of a worker that dials in, with the environment its libraries need when they load."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tinkex.errors import ConfigError
from tinkex.server.config import ServedModel
from tinkex.server.models.engine_factory import find_model

if TYPE_CHECKING:
    from tinkex.engine.interface import Role

__all__ = ["parse_address", "parse_roles", "worker_command"]

_MODULE = "tinkex.engine.remote.main"


def parse_address(text: str, setting: str) -> tuple[str, int]:
    """`HOST:PORT`.

    Raises:
        ConfigError: it is something else.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(
            f"{setting}={text!r} is not HOST:PORT.", hint="Write it as 10.0.0.5:8001.", code="usage"
        )
    return host.strip("[]"), int(port)


def parse_roles(text: str) -> tuple[Role, ...]:
    """`train`, `sample`, or both with a comma between.

    Raises:
        ConfigError: it is something else.
    """
    from tinkex.engine.interface import ROLES

    named = {each.strip() for each in text.split(",")}
    if not named <= set(ROLES):
        raise ConfigError(
            f"--role={text!r} is no role of a worker.",
            hint="Write train, sample, or train,sample.",
            code="usage",
        )
    return tuple(each for each in ROLES if each in named)


def worker_command(
    *,
    join: str,
    models: tuple[ServedModel, ...],
    data_dir: Path,
    token_file: Path,
    name: str,
    device: str,
    dtype: str,
    num_threads: int | None,
    losses: tuple[str, ...],
    tls_ca: str | None,
    roles: tuple[Role, ...],
) -> tuple[list[str], dict[str, str]]:
    """What to run, and with which environment.

    Raises:
        ConfigError: a model cannot be found, or the address is none.
    """
    from tinkex.engine.options import EngineOptions
    from tinkex.engine.process.spawn import ENVIRONMENT
    from tinkex.engine.remote.main import WorkerSettings

    host, port = parse_address(join, "--join")
    is_null = device.partition(":")[0] == "null"
    folders = {model.name: "" if is_null else str(find_model(model, data_dir)) for model in models}
    settings = WorkerSettings(
        options=EngineOptions(
            models=folders, device=device, dtype=dtype, num_threads=num_threads, losses=losses
        ),
        host=host,
        port=port,
        name=name,
        token_file=str(token_file.absolute()),  # not resolved: it may be /dev/stdin, a pipe
        cache_dir=str(data_dir / "worker-cache"),
        tls_ca=tls_ca,
        roles=roles,
    )
    command = [sys.executable, "-P", "-m", _MODULE, msgspec.json.encode(settings).decode()]
    return command, {**ENVIRONMENT, **os.environ}
