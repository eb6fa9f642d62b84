"""`tinkex doctor`: checks whether everything to train and sample is in place."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tinkex.cli.failure import address_advice
from tinkex.cli.installing import install_command
from tinkex.cli.options import connection_options, json_option, quick_config
from tinkex.cli.output import print_json, printable, say, size_text
from tinkex.cli.version import version as own_version
from tinkex.config import Config
from tinkex.errors import (
    APIConnectionError,
    APIStatusError,
    AuthenticationError,
    PermissionDeniedError,
    TinkexError,
)

if TYPE_CHECKING:
    from tinkex.cli.served_models import OfferedModel

Status = Literal["ok", "warning", "failed", "skipped"]
LEAST_PYTHON = (3, 11)
LEAST_DISK_BYTES = 2_000_000_000
_MARKS: dict[Status, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "failed": ("FAILED", "red"),
    "skipped": ("skipped", "bright_black"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, with advice."""

    name: str
    status: Status
    detail: str
    next_step: str | None = None


@click.command(short_help="Check that everything needed is in place.")
@click.option("--base-model", metavar="NAME", help="Check this model's tokenizer, too.")
@click.option(
    "--model-folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Say how 'tinkex serve' would run the model in this folder, too.",
)
@json_option
@connection_options
@click.pass_context
def command(
    context: click.Context,
    /,
    base_model: str | None,
    model_folder: Path | None,
    is_json: bool,
    **connection: Any,
) -> None:
    """Check Python, packages, kernels, disk, server, key and tokenizer.

    Each failure comes with the next thing to do. The exit code is 1 if a check failed.

    \b
    JSON: {"is_ok", "checks": [{"name", "status": "ok"|"warning"|"failed"|"skipped", "detail",
      "next_step"}]}
    """
    found: list[Finding] = []
    for finding in _checks(connection, base_model, model_folder):
        found.append(finding)
        if not is_json:
            _print(finding)
    failed = [each for each in found if each.status == "failed"]
    if is_json:
        rows = [
            {name: getattr(each, name) for name in ("name", "status", "detail", "next_step")}
            for each in found
        ]
        print_json({"is_ok": not failed, "checks": rows})
    else:
        say(f"{len(failed)} of {len(found)} checks failed." if failed else "All is well.")
    context.exit(1 if failed else 0)


def _print(finding: Finding) -> None:
    word, color = _MARKS[finding.status]
    mark = click.style(word.ljust(8), fg=color)
    click.echo(f"{mark} {finding.name.ljust(10)} {printable(finding.detail)}")
    if finding.next_step:
        click.echo(f"{' ' * 20}-> {printable(finding.next_step)}")


def _checks(
    connection: dict[str, Any], base_model: str | None, model_folder: Path | None
) -> Iterator[Finding]:
    yield check_python(sys.version_info[:3])
    yield check_package()
    torch = check_torch()
    yield torch
    if torch.status == "ok":
        yield check_kernels()
    if model_folder is not None:
        yield check_model(model_folder)
    yield check_disk(Path.cwd())
    try:
        config = quick_config(**connection)
    except TinkexError as error:
        yield Finding("settings", "failed", error.message, error.hint)
        return
    yield Finding("settings", "ok", f"the server is {config.base_url}")
    yield from check_server(config, base_model)


def check_python(found: tuple[int, ...]) -> Finding:
    """Checks whether this Python is new enough."""
    text = ".".join(map(str, found))
    if found >= LEAST_PYTHON:
        return Finding("python", "ok", f"{text} at {sys.executable}")
    least = ".".join(map(str, LEAST_PYTHON))
    return Finding("python", "failed", f"{text} is too old", f"Install Python {least} or newer.")


def check_package() -> Finding:
    """Checks whether the client's dependencies are installed."""
    from tinkex.cli.version import dependencies

    missing = [name for name, installed in dependencies() if installed is None]
    if missing:
        return Finding(
            "tinkex",
            "failed",
            f"{own_version()}, but {', '.join(missing)} is missing",
            install_command(),
        )
    return Finding("tinkex", "ok", own_version())


def check_torch(find: Callable[[str], str] = version) -> Finding:
    """Checks for PyTorch, which a local server and custom losses need."""
    try:
        return Finding("torch", "ok", find("torch"))
    except PackageNotFoundError:
        return Finding(
            "torch",
            "skipped",
            "not installed; only 'tinkex serve' and custom losses need it",
            install_command("server"),
        )


def check_kernels() -> Finding:
    """Checks whether a local server would sample by compiled kernels."""
    try:
        from tinkex.server.models.engine_factory import kernels_trouble

        trouble = kernels_trouble()
    except ImportError:
        return Finding("kernels", "skipped", "only 'tinkex serve' has a use for them")
    if trouble is None:
        return Finding("kernels", "ok", "compiled for this machine")
    return Finding(
        "kernels",
        "warning",
        f"'tinkex serve' would sample without them, more slowly: {trouble[0]}",
        trouble[1],
    )


def check_model(folder: Path) -> Finding:
    """Checks whether a local server would run this model on its fastest path."""
    try:
        from tinkex.server.models.engine_factory import model_trouble

        trouble = model_trouble(folder)
    except ImportError:
        return Finding("model", "skipped", "only 'tinkex serve' has a use for it")
    if trouble is None:
        return Finding("model", "ok", f"{folder} runs on the server's own model code")
    return Finding("model", "warning", trouble)


def check_disk(folder: Path, free_bytes: int | None = None) -> Finding:
    """Checks whether the disk has space for a checkpoint or two."""
    free = shutil.disk_usage(folder).free if free_bytes is None else free_bytes
    detail = f"{size_text(free)} free in {folder}"
    if free >= LEAST_DISK_BYTES:
        return Finding("disk", "ok", detail)
    return Finding("disk", "warning", detail, "Make room before you download checkpoints.")


def check_server(config: Config, base_model: str | None) -> Iterator[Finding]:
    """Checks server, key, models and tokenizer, each as far as the previous ones succeed."""
    if not config.has_api_key:
        yield Finding(
            "key",
            "failed",
            "there is none",
            "tinkex auth login   ('tinkex serve' prints the key of your own server)",
        )
        return
    try:
        models = _models(config)
    except TinkexError as error:
        yield from _server_trouble(error, config)
        return
    names = [str(each) for each in models]
    yield Finding("server", "ok", f"{config.base_url} answers")
    yield Finding("key", "ok", f"accepted (from {config.origin('api_key')})")
    if not names:
        yield Finding("models", "failed", "the server has none", "tinkex serve --model NAME")
        return
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    yield Finding("models", "ok", ", ".join(names[:5]) + more)
    yield check_tokenizer(config, base_model or models[0].model.model_name or "?")


def _models(config: Config) -> list[OfferedModel]:
    from tinkex.cli.served_models import offered_models
    from tinkex.client.service import ServiceClient

    with ServiceClient(config=config) as service:
        return offered_models(service.get_server_capabilities())


def _server_trouble(error: TinkexError, config: Config) -> Iterator[Finding]:
    if isinstance(error, AuthenticationError | PermissionDeniedError):
        yield Finding("server", "ok", f"{config.base_url} answers")
        yield Finding(
            "key",
            "failed",
            f"refused (from {config.origin('api_key')}): {error.message}",
            "tinkex auth login   (on your own server 'tinkex keys create' makes a key)",
        )
    elif isinstance(error, APIConnectionError):
        yield Finding(
            "server",
            "failed",
            error.message,
            address_advice(error)
            or "Start one with 'tinkex serve', or set TINKER_BASE_URL "
            f"(now from {config.origin('base_url')}).",
        )
    else:
        status = f" with {error.status}" if isinstance(error, APIStatusError) else ""
        yield Finding(
            "server",
            "failed",
            f"{config.base_url} answers{status}, but not as a Tinker server: {error.message}",
            address_advice(error) or "Check TINKER_BASE_URL.",
        )


def check_tokenizer(config: Config, name: str) -> Finding:
    """Checks whether the tokenizer of a model can be loaded here."""
    from tinkex.client.service import ServiceClient

    try:
        with ServiceClient(config=config) as service:
            tokenizer = service.create_sampling_client(base_model=name).get_tokenizer()
    except TinkexError as error:
        return Finding("tokenizer", "failed", error.message, error.hint or None)
    chat = "with" if tokenizer.chat_template else "without"
    return Finding("tokenizer", "ok", f"{name}: {len(tokenizer)} tokens, {chat} a chat template")
