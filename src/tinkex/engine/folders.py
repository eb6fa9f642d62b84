"""Folders that appear on disk whole or not at all, and stay after a power cut.

Knows nothing of what the files mean.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from tinkex import crashpoints

__all__ = ["folder_size_bytes", "write_folder"]

Content = bytes | Callable[[Path], None]
"""A file's bytes, or a function that writes the file at the path it is given."""


def write_folder(folder: Path, files: Mapping[str, Content]) -> None:
    """Puts a folder with these files at `folder`, replacing what was there.

    The files are written and synced under a hidden name beside it, then renamed into place.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    unique = uuid.uuid4().hex[:12]
    staging = folder.parent / f".{folder.name}.{unique}.new"
    staging.mkdir()
    try:
        for name, content in files.items():
            _write_file(staging / name, content)
        _sync(staging)
        crashpoints.passing("engine.folder.synced", folder.parent.name)
        _swap(staging, folder, folder.parent / f".{folder.name}.{unique}.old")
        crashpoints.passing("engine.folder.renamed", folder.parent.name)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def folder_size_bytes(folder: Path) -> int:
    """The sum of the sizes of the files in the folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _write_file(path: Path, content: Content) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    crashpoints.passing("engine.folder.begun", path.parent.parent.name)
    _sync(path)


def _swap(staging: Path, folder: Path, aside: Path) -> None:
    # A non-empty folder cannot be renamed over, so an old one steps aside first.
    if folder.exists():
        folder.rename(aside)
    staging.rename(folder)
    shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
