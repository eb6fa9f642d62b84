"""`tinkex checkpoint download`: the weights as files, whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.options import connection_options, json_option, reached_config
from tinkex.cli.output import counted, print_json, say, size_text
from tinkex.cli.progress import StatusLine
from tinkex.errors import TinkexError, ValidationError

if TYPE_CHECKING:
    from tinkex.client.download import Progress
    from tinkex.client.service import ServiceClient
    from tinkex.wire.paths import TinkerPath

EXPORT_LIFE_S = 3600


@click.command(short_help="Download the weights.")
@click.argument("path")
@click.option("-o", "--output", metavar="DIR", help="The folder.  [default: RUN_KIND_NAME]")
@click.option("--force", "is_forced", is_flag=True, help="Replace the folder if it exists.")
@json_option
@connection_options
def download(
    path: str, output: str | None, is_forced: bool, is_json: bool, **connection: Any
) -> None:
    """Download the weights of a checkpoint as a PEFT adapter folder.

    Sizes and hashes are checked; the folder appears, or replaces the old one, only when every
    file is whole. Training and sampler checkpoints are exported first, which takes a moment.

    \b
    Examples:
      tinkex checkpoint download tinker://RUN/weights/final -o adapter
      tinkex checkpoint download tinker://RUN/weights/final -o adapter --force --json

    \b
    JSON: {"checkpoint_path", "destination", "file_size_bytes", "files": [NAME]}
    """
    from tinkex.client.service import ServiceClient
    from tinkex.wire.paths import TinkerPath

    parsed = TinkerPath.parse(path)
    folder = Path(output).expanduser() if output else Path(default_folder(parsed))
    check_free(folder, is_forced)
    with ServiceClient(config=reached_config(**connection)) as service:
        fetch(service, parsed, folder)
    show_downloaded(parsed, folder, is_json)


def show_downloaded(path: TinkerPath, folder: Path, is_json: bool) -> None:
    """Prints the downloaded files."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    size = sum(each.stat().st_size for each in files)
    if is_json:
        print_json(
            {
                "checkpoint_path": str(path),
                "destination": str(folder.absolute()),
                "file_size_bytes": size,
                "files": [each.relative_to(folder).as_posix() for each in files],
            }
        )
    else:
        click.echo(folder)
        say(f"Downloaded {counted(len(files), 'file')}, {size_text(size)}.")


def default_folder(path: TinkerPath) -> str:
    """Returns the folder's name if none is given; run ids have colons, which
    some systems refuse."""
    return f"{path.run_id.replace(':', '-')}_{path.kind}_{path.name}"


def fetch(service: ServiceClient, path: TinkerPath, folder: Path) -> None:
    """Downloads the files of a checkpoint into a folder."""
    with StatusLine() as status, _exported(service, path, status) as exported:
        rest = service.create_rest_client()
        rest.download_checkpoint(exported, folder, on_progress(status)).result()


def on_progress(status: StatusLine) -> Progress:
    """Returns the callback that shows a download's progress."""

    def show(name: str, so_far: int, total: int | None) -> None:
        bar = f"{status.bar(so_far, total)} " if total else ""
        whole = f" of {size_text(total)}" if total else ""
        status.show(f"{bar}{name}  {size_text(so_far)}{whole}")

    return show


@contextmanager
def _exported(service: ServiceClient, path: TinkerPath, status: StatusLine) -> Iterator[str]:
    """Yields the path of an exported form of the checkpoint; an export made
    here is deleted afterwards."""
    if path.kind == "external_weights":
        yield str(path)
        return
    status.say("Exporting the weights…")
    training = service.create_training_client_from_state(str(path))
    name = f"download-{secrets.token_hex(4)}"
    exported = training.save_weights_external(name, ttl_seconds=EXPORT_LIFE_S).result().path
    try:
        yield exported
    finally:
        _delete(service, exported)


def _delete(service: ServiceClient, exported: str) -> None:
    try:
        service.create_rest_client().delete_checkpoint_from_tinker_path(exported).result(10)
    except TinkexError as error:
        say(f"Warning: {exported} could not be deleted and expires by itself: {error.message}")


def check_free(folder: Path, is_forced: bool) -> None:
    """Returns if the folder may be written.

    Raises:
        ValidationError: the folder exists and must not be replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise ValidationError(f"{folder} is a file.", hint="Choose another folder with --output.")
    if folder.exists() and not is_forced:
        raise ValidationError(
            f"{folder} already exists.", hint="Add --force to replace it, or choose --output."
        )
