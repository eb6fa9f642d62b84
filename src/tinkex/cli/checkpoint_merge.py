"""`tinkex checkpoint merge`: a checkpoint and its base model as one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tinkex.cli.checkpoint_download import check_free, default_folder, on_progress, show_downloaded
from tinkex.cli.options import connection_options, json_option, reached_config
from tinkex.cli.progress import StatusLine


@click.command(short_help="Download a model with a checkpoint in it.")
@click.argument("path")
@click.option("-o", "--output", metavar="DIR", help="The folder.  [default: RUN_KIND_NAME-merged]")
@click.option("--force", "is_forced", is_flag=True, help="Replace the folder if it exists.")
@json_option
@connection_options
def merge(path: str, output: str | None, is_forced: bool, is_json: bool, **connection: Any) -> None:
    """Download the base model with a checkpoint merged into it.

    The folder has the base model's weights in their own type, config and tokenizer, and loads into
    transformers, vLLM and other loaders of whole models. The server merges while it sends; it
    must have the base model's files. For the adapter alone see 'tinkex checkpoint download'.

    \b
    Examples:
      tinkex checkpoint merge tinker://RUN/sampler_weights/final -o merged
      tinkex checkpoint merge tinker://RUN/weights/final --force --json

    \b
    JSON: {"checkpoint_path", "destination", "file_size_bytes", "files": [NAME]}
    """
    from tinkex.client.service import ServiceClient
    from tinkex.wire.paths import TinkerPath

    parsed = TinkerPath.parse(path)
    folder = Path(output or f"{default_folder(parsed)}-merged").expanduser()
    check_free(folder, is_forced)
    with ServiceClient(config=reached_config(**connection)) as service, StatusLine() as status:
        rest = service.create_rest_client()
        rest.download_merged_model(str(parsed), folder, on_progress(status)).result()
    show_downloaded(parsed, folder, is_json)
