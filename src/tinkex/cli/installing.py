"""The pip command that adds packages to this installation, from its own source."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["install_command"]


def install_command(extra: str = "") -> str:
    """Returns a command line that installs Tinkex again, with an extra, from the same source.

    pip keeps that source with the package: a clone's folder, a file, a repository, or nothing for
    a package index. Without any record the command is for the folder of a clone.
    """
    suffix = f"[{extra}]" if extra else ""
    try:
        found = distribution("tinkex")
    except PackageNotFoundError:
        return _pip(f".{suffix}")
    record = found.read_text("direct_url.json")
    if record is None:
        return _pip(f"{found.name}{suffix}")
    source: dict[str, Any] = json.loads(record)
    if "dir_info" not in source:
        kind = source.get("vcs_info", {}).get("vcs")
        return _pip(f"tinkex{suffix} @ {kind + '+' if kind else ''}{source['url']}")
    folder = Path(unquote(urlsplit(source["url"]).path))
    if not (folder / "pyproject.toml").is_file():
        return _pip(f".{suffix}")  # the clone has moved
    return _pip(f"{folder}{suffix}", is_editable=bool(source["dir_info"].get("editable")))


def _pip(what: str, *, is_editable: bool = False) -> str:
    return f"pip install {'-e ' if is_editable else ''}{shlex.quote(what)}"
