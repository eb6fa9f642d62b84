"""`tinkex checkpoint push-hf`: a checkpoint as a PEFT adapter on the Hugging Face Hub."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinkex.cli.checkpoint_download import fetch
from tinkex.cli.options import connection_options, json_option, reached_config, read_text
from tinkex.cli.output import print_json, say
from tinkex.errors import (
    APIConnectionError,
    PermissionDeniedError,
    TinkexError,
    ValidationError,
    status_error_class,
)

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from tinkex.wire.paths import TinkerPath

ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_MAX_NAME = 96
_REPO = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


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
    from tinkex.client.service import ServiceClient
    from tinkex.wire.paths import TinkerPath

    if repo is not None and not _REPO.fullmatch(repo):
        raise click.UsageError(f"--repo {repo!r} is no repository such as me/my-adapter.")
    parsed = TinkerPath.parse(path)
    hub = _hub(hub_url, read_text(hf_token_file).strip() if hf_token_file else None)
    with tempfile.TemporaryDirectory(prefix="tinkex-") as folder:
        files = Path(folder) / "adapter"
        with ServiceClient(config=reached_config(**connection)) as service:
            weights = service.create_rest_client().get_weights_info_by_tinker_path(path).result()
            fetch(service, parsed, files)
        _check_adapter(files)
        if repo is None:
            repo, branch = _names_of(parsed, weights.base_model, _user(hub))
            revision = revision or (None if is_pull_request else branch)
        if not has_no_card:
            (files / "README.md").write_text(_card(repo, weights.base_model, path))
        say(f"Uploading to {repo}…")
        url = _upload(
            hub,
            files,
            repo,
            is_public=is_public,
            revision=revision,
            create_pr=is_pull_request,
            commit_message=commit_message or f"Upload {path}",
            allow_patterns=list(allow_pattern) or None,
            ignore_patterns=list(ignore_pattern) or None,
        )
    if is_json:
        done = {"repo_id": repo, "revision": revision, "public": is_public, "url": url}
        print_json({"checkpoint_path": str(parsed), **done})
    else:
        click.echo(url)


def _names_of(path: TinkerPath, base_model: str, user: str) -> tuple[str, str]:
    """A repository for the run, within what the hub takes as a name, and a branch for the path."""
    run = f"-{path.run_id}"
    base = base_model.rstrip("/").rpartition("/")[2]
    name = f"tinkex-{base}"[: max(0, _MAX_NAME - len(run))] + run
    return f"{user}/{_plain_name(name[-_MAX_NAME:])}", _plain_name(path.checkpoint_id)


def _plain_name(text: str) -> str:
    """The text with a single '-' for whatever the hub does not take in a name."""
    return re.sub(r"(?:[^A-Za-z0-9_.]|\.\.)+\.*", "-", text).strip("-.")


def _hub(url: str | None, token: str | None) -> HfApi:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise ValidationError(
            "push-hf needs the package huggingface_hub.",
            hint="Run 'pip install huggingface_hub'.",
            code="missing-package",
        ) from None
    return HfApi(endpoint=url, token=token)


def _upload(
    hub: HfApi, folder: Path, repo: str, *, is_public: bool, revision: str | None, **options: Any
) -> str:
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    with _hub_errors():
        hub.create_repo(repo, private=not is_public, exist_ok=True)
        if revision is not None and not options["create_pr"]:
            hub.create_branch(repo, branch=revision, exist_ok=True)
        commit = hub.upload_folder(repo_id=repo, folder_path=folder, revision=revision, **options)
    return str(commit.pr_url or commit.commit_url)


def _user(hub: HfApi) -> str:
    """Whose token it is."""
    with _hub_errors():
        return str(hub.whoami()["name"])


@contextmanager
def _hub_errors() -> Iterator[None]:
    """Has errors of the hub, and of the way to it, raised as ours."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    # The base classes are those of the HTTP library the installed hub client is built on.
    network_errors: Any = HfHubHTTPError.__bases__
    try:
        yield
    except HfHubHTTPError as error:
        raise _refusal(error) from error
    except LocalTokenNotFoundError as error:
        raise ValidationError(
            "There is no token for the hub.",
            hint="Log in with 'hf auth login', or give --hf-token-file.",
            code="no-hub-token",
        ) from error
    except network_errors as error:
        raise APIConnectionError(
            f"The hub could not be reached: {type(error).__name__}.",
            hint="Check the network (or --hub-url) and run the command again.",
        ) from error
    except ValueError as error:
        raise ValidationError(
            f"The hub's client refuses: {error}", hint="Check --repo, --revision and --hub-url."
        ) from error


def _refusal(error: Any) -> TinkexError:
    status = getattr(error.response, "status_code", 500)
    said = getattr(error, "server_message", None) or str(error).strip().split("\n")[-1]
    hint = (
        "Log in with 'hf auth login', or give --hf-token-file, with a token that may write."
        if status in (401, 403)
        else "Check --repo, then run the command again."
    )
    kind = PermissionDeniedError if status == 401 else status_error_class(status)
    return kind(f"The hub refused with {status}: {said}", status=status, hint=hint)


def _check_adapter(folder: Path) -> None:
    has_weights = any((folder / name).is_file() for name in ADAPTER_FILES)
    if not has_weights or not (folder / "adapter_config.json").is_file():
        names = ", ".join(sorted(each.name for each in folder.iterdir()))
        raise ValidationError(
            f"The checkpoint is no PEFT adapter; it holds: {names}.",
            hint="Download it with 'tinkex checkpoint download' to look at it.",
        )


def _card(repo: str, base_model: str, path: str) -> str:
    name = repo.rpartition("/")[2]
    front = f"base_model: {json.dumps(base_model)}\nlibrary_name: peft\ntags:\n- lora\n- tinkex\n"
    return (
        f"---\n{front}---\n\n# {name}\n\n"
        f"A LoRA adapter for `{base_model}`, trained with Tinkex. Saved as `{path}`.\n\n"
        "```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
        f"base = AutoModelForCausalLM.from_pretrained({base_model!r})\n"
        f"model = PeftModel.from_pretrained(base, {repo!r})\n```\n"
    )
