"""An adapter on the Hugging Face Hub: repository, model card, upload, and the hub's refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

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

__all__ = ["HubCommit", "HubUpload", "check_adapter", "is_repository", "open_hub"]

ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
_MAX_NAME = 96
_REPO = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


class HubCommit(msgspec.Struct, frozen=True, kw_only=True):
    """What was uploaded, and where it is."""

    repo_id: str
    revision: str | None
    url: str


class HubUpload(msgspec.Struct, frozen=True, kw_only=True):
    """How an adapter is to be uploaded."""

    repo: str | None = None
    is_public: bool = False
    revision: str | None = None
    commit_message: str | None = None
    is_pull_request: bool = False
    allow_patterns: Sequence[str] | None = None
    ignore_patterns: Sequence[str] | None = None
    has_card: bool = True

    def named(self, hub: HfApi, path: TinkerPath, base_model: str) -> HubUpload:
        """With a repository, and a branch for the checkpoint, if no repository was given."""
        if self.repo is not None:
            return self
        repo, branch = _names_of(path, base_model, _user(hub))
        revision = self.revision or (None if self.is_pull_request else branch)
        return msgspec.structs.replace(self, repo=repo, revision=revision)

    def run(self, hub: HfApi, folder: Path, path: TinkerPath, base_model: str) -> HubCommit:
        """Writes the model card into the folder and uploads it; `named` was called before."""
        assert self.repo is not None
        if self.has_card:
            (folder / "README.md").write_text(_card(self.repo, base_model, str(path)))
        url = _upload(
            hub,
            folder,
            self.repo,
            is_public=self.is_public,
            revision=self.revision,
            create_pr=self.is_pull_request,
            commit_message=self.commit_message or f"Upload {path}",
            allow_patterns=list(self.allow_patterns or ()) or None,
            ignore_patterns=list(self.ignore_patterns or ()) or None,
        )
        return HubCommit(repo_id=self.repo, revision=self.revision, url=url)


def is_repository(name: str) -> bool:
    """Whether the hub could take it as a repository's name."""
    return _REPO.fullmatch(name) is not None


def _names_of(path: TinkerPath, base_model: str, user: str) -> tuple[str, str]:
    """A repository for the run, within what the hub takes as a name, and a branch for the path."""
    run = f"-{path.run_id}"
    base = base_model.rstrip("/").rpartition("/")[2]
    name = f"tinkex-{base}"[: max(0, _MAX_NAME - len(run))] + run
    return f"{user}/{_plain_name(name[-_MAX_NAME:])}", _plain_name(path.checkpoint_id)


def _plain_name(text: str) -> str:
    """The text with a single '-' for whatever the hub does not take in a name."""
    return re.sub(r"(?:[^A-Za-z0-9_.]|\.\.)+\.*", "-", text).strip("-.")


def open_hub(url: str | None, token: str | None) -> HfApi:
    """The hub's API, with the token given or that of the login.

    Raises:
        ValidationError: the package huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise ValidationError(
            "An upload to the hub needs the package huggingface_hub.",
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
            hint="Log in with 'hf auth login', or give --hf-token-file (hf_token).",
            code="no-hub-token",
        ) from error
    except network_errors as error:
        raise APIConnectionError(
            f"The hub could not be reached: {type(error).__name__}.",
            hint="Check the network (or --hub-url) and try again.",
        ) from error
    except RuntimeError as error:
        # What the hub's client makes of an upload of a file that failed, whatever the cause.
        if isinstance(error.__cause__, HfHubHTTPError):
            raise _refusal(error.__cause__) from error
        raise APIConnectionError(
            f"The upload failed: {error.__cause__ or error}", hint="Try again."
        ) from error
    except ValueError as error:
        raise ValidationError(
            f"The hub's client refuses: {error}", hint="Check --repo, --revision and --hub-url."
        ) from error


def _refusal(error: Any) -> TinkexError:
    status = getattr(error.response, "status_code", 500)
    said = getattr(error, "server_message", None) or str(error).strip().split("\n")[-1]
    hint = (
        "Log in with 'hf auth login', or give --hf-token-file (hf_token) with a token that may "
        "write."
        if status in (401, 403)
        else "Check --repo (repo), then try again."
    )
    kind = PermissionDeniedError if status == 401 else status_error_class(status)
    return kind(f"The hub refused with {status}: {said}", status=status, hint=hint)


def check_adapter(folder: Path) -> None:
    """Refuses a folder that PEFT could not load.

    Raises:
        ValidationError: a file is missing.
    """
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
