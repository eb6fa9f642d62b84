"""Finds the files of a tokenizer: in a local folder, the Hugging Face cache, or on the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tinkex.config import ProcessSettings
from tinkex.errors import TokenizerError

__all__ = ["failure", "find_folder", "resolve_tokenizer_id"]

_LLAMA_3: Final = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|[A-Za-z0-9][\w.-]*")
_HUB_FILES: Final = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja", "added_tokens.json"),
    *("tokenizer.model", "tiktoken.model", "vocab.json", "merges.txt", "vocab.txt"),
)


def resolve_tokenizer_id(model_name: str, tokenizer_id: str | None = None) -> str:
    """Returns the id or folder of a model's tokenizer, from the server's description of the model.

    >>> resolve_tokenizer_id("Qwen/Qwen3-8B/variant:tag")
    'Qwen/Qwen3-8B'
    """
    name = tokenizer_id or (model_name if _is_path(model_name) else model_name.split(":")[0])
    if tokenizer_id or _is_path(name):
        return name
    if name.startswith("meta-llama/Llama-3"):
        return _LLAMA_3  # the original is behind a consent form
    return "/".join(name.split("/")[:2]) if name.count("/") == 2 else name


def find_folder(id_or_path: str, where: ProcessSettings) -> Path:
    if not id_or_path.strip():
        raise failure(repr(id_or_path), "the name is empty")
    local = Path(id_or_path).expanduser()
    if local.is_file():
        return local.parent
    if local.is_dir():
        return local
    if _is_path(id_or_path) or not _HUB_ID.fullmatch(id_or_path):
        raise failure(id_or_path, "there is no such folder, and it is no Hugging Face id")
    if id_or_path.startswith(("TML/", "thinkingmachines/")):
        raise failure(
            id_or_path,
            "this family has no public tokenizer",
            hint="Render conversations with the package tml-renderers and pass token ids.",
        )
    return _in_cache(id_or_path, where.hub_cache) or _from_hub(id_or_path, where)


def _in_cache(repo_id: str, hub_cache: Path) -> Path | None:
    """Returns the newest snapshot with a tokenizer in the Hugging Face cache, the
    one of `main` first."""
    repo = hub_cache / f"models--{repo_id.replace('/', '--')}"
    main = repo / "refs" / "main"
    named = [repo / "snapshots" / main.read_text().strip()] if main.is_file() else []
    others = sorted((repo / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime)
    for folder in [*named, *reversed(others)]:
        if any((folder / name).is_file() for name in ("tokenizer.json", "tiktoken.model")):
            return folder
    return None


def _from_hub(repo_id: str, where: ProcessSettings) -> Path:
    if where.is_hub_offline:
        raise failure(repo_id, f"it is not in {where.hub_cache}, and HF_HUB_OFFLINE is set")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise failure(
            repo_id,
            "it is not on this machine",
            hint="pip install huggingface_hub, or pass a path.",
        ) from None
    folder = snapshot_download(  # nosec B615 # the user's choice; no code of it is run
        repo_id, allow_patterns=list(_HUB_FILES), cache_dir=where.hub_cache
    )
    return Path(folder)


def _is_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or "\\" in name


def failure(name: str, reason: str, hint: str | None = None) -> TokenizerError:
    return TokenizerError(
        f"Failed to load tokenizer {name}: {reason.rstrip('.')}.",
        hint=hint
        or "Check the name, or pass the path of a folder that holds the model's tokenizer.json.",
    )
