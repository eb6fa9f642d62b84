"""`tinkex checkpoint push-hf`: a checkpoint as a PEFT adapter on the Hugging Face Hub."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from tinkex.cli.checkpoint_download import fetch
from tinkex.cli.options import connection_options, json_option, reached_config, read_text
from tinkex.cli.output import print_json, say


@click.command("push-hf", short_help="Upload to the Hugging Face Hub.")
@click.argument("path")
@click.option(
    "-r", "--repo", metavar="OWNER/NAME", help="The repository.  [default: named after the run]"
)
@click.option("--public", "is_public", is_flag=True, help="Make the repository public.  [private]")
@click.option("--revision", metavar="BRANCH", help="The branch to commit to.  [main]")
@click.option("--commit-message", metavar="TEXT", help="Words of your own for the commit.")
@click.option("--create-pr", "is_pull_request", is_flag=True, help="Propose it, do not commit.")
@click.option("--allow-pattern", multiple=True, metavar="GLOB", help="Only such files.")
@click.option("--ignore-pattern", multiple=True, metavar="GLOB", help="No such files.")
@click.option("--no-model-card", "has_no_card", is_flag=True, help="Write no README.md.")
@click.option("--hf-token-file", metavar="FILE", help="The hub's token; else as 'hf auth login'.")
@click.option("--hub-url", metavar="URL", help="Another hub.  [https://huggingface.co]")
@json_option
@connection_options
def push_hf(
    path: str,
    repo: str | None,
    is_public: bool,
    revision: str | None,
    commit_message: str | None,
    is_pull_request: bool,
    allow_pattern: tuple[str, ...],
    ignore_pattern: tuple[str, ...],
    has_no_card: bool,
    hf_token_file: str | None,
    hub_url: str | None,
    is_json: bool,
    **connection: Any,
) -> None:
    """Upload a checkpoint to the Hugging Face Hub as a PEFT adapter, private by default.

    Needs 'pip install huggingface_hub' and a login ('hf auth login').

    Without --repo the repository is yours, is named after base model and run, and has a branch for
    each checkpoint, such as weights-final.

    \b
    Examples:
      tinkex checkpoint push-hf tinker://RUN/weights/final --repo me/my-adapter
      tinkex checkpoint push-hf tinker://RUN/weights/final

    \b
    JSON: {"checkpoint_path", "repo_id", "revision", "public", "url"}
    """
    from tinkex.client.hub_upload import HubUpload, check_adapter, is_repository, open_hub
    from tinkex.client.service import ServiceClient
    from tinkex.wire.paths import TinkerPath

    if repo is not None and not is_repository(repo):
        raise click.UsageError(f"--repo {repo!r} is no repository such as me/my-adapter.")
    parsed = TinkerPath.parse(path)
    hub = open_hub(hub_url, read_text(hf_token_file).strip() if hf_token_file else None)
    upload = HubUpload(
        repo=repo,
        is_public=is_public,
        revision=revision,
        commit_message=commit_message,
        is_pull_request=is_pull_request,
        allow_patterns=allow_pattern,
        ignore_patterns=ignore_pattern,
        has_card=not has_no_card,
    )
    with tempfile.TemporaryDirectory(prefix="tinkex-") as folder:
        files = Path(folder) / "adapter"
        with ServiceClient(config=reached_config(**connection)) as service:
            weights = service.create_rest_client().get_weights_info_by_tinker_path(path).result()
            fetch(service, parsed, files)
        check_adapter(files)
        upload = upload.named(hub, parsed, weights.base_model)
        say(f"Uploading to {upload.repo}…")
        done = upload.run(hub, files, parsed, weights.base_model)
    if is_json:
        document = {"repo_id": done.repo_id, "revision": done.revision, "public": is_public}
        print_json({"checkpoint_path": str(parsed), **document, "url": done.url})
    else:
        click.echo(done.url)
