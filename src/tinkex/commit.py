"""The commit this package was built from, or is run from.

A build writes it down as a file of the package (`tools/build_commit.py`); a clone or an editable
install has a repository of its own. The repository's files are read and git is not run, so that
neither the current folder nor an environment variable can name another repository. Imports nothing
of this package: the build loads it as a file.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["FILE_NAME", "commit_of_package", "commit_of_repository"]

FILE_NAME = "commit.txt"
_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_MAX_BYTES = 1 << 22


def commit_of_package(package: Path) -> str | None:
    """The commit of the package in this folder; None if it is unknown.

    A folder above the package counts as its repository only if it has the layout of ours: a package
    that was copied or installed into another repository is not of that one's commit.
    """
    if written := _sha(_text(package / FILE_NAME)):
        return written
    root = package.parent.parent
    is_ours = package == root / "src" / "tinkex" and (root / "pyproject.toml").is_file()
    return commit_of_repository(root) if is_ours else None


def commit_of_repository(root: Path) -> str | None:
    """What is checked out in the repository whose top is this folder; None if that is no such."""
    try:
        folder = _git_folder(root / ".git")
        shared = folder / (_text(folder / "commondir").strip() or ".")
        return _resolved(folder, shared)
    except (OSError, ValueError):
        return None


def _git_folder(path: Path) -> Path:
    """The repository's data: `.git` itself, or, in a worktree, what the file `.git` names."""
    if path.is_file():
        return path.parent / _text(path).removeprefix("gitdir:").strip()
    return path


def _resolved(folder: Path, shared: Path) -> str | None:
    head = _text(folder / "HEAD").strip()
    if not head.startswith("ref:"):
        return _sha(head)
    name = head.removeprefix("ref:").strip()
    if ".." in name or not name.startswith("refs/"):
        return None
    loose = _sha(_text(folder / name)) or _sha(_text(shared / name))
    return loose or _packed(_text(shared / "packed-refs"), name)


def _packed(text: str, name: str) -> str | None:
    for line in text.splitlines():
        sha, _, found = line.partition(" ")
        if found == name:
            return _sha(sha)
    return None


def _sha(text: str) -> str | None:
    text = text.strip()
    return text if _SHA.fullmatch(text) else None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
