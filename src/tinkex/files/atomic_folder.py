"""Folders that appear on disk whole or not at all, stay after a power cut, and know their files.

Every folder carries a list of its files with their sizes and hashes, so that a flipped bit, a cut
or missing file, or one from another folder is found when it is read. Knows nothing of what the
files mean.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tinkex import crashpoints
from tinkex.files.os_errors import damaged, translate_os_errors

__all__ = [
    "MANIFEST",
    "Content",
    "ListedFile",
    "decode_manifest",
    "folder_size_bytes",
    "listed_files",
    "manifest_digest",
    "payload_files",
    "verify_folder",
    "write_folder",
]

MANIFEST = "tinkex_files.json"

Content = bytes | Callable[[], Iterable[Any]]
"""A file's bytes, or a function that gives them in parts, bytes-like each."""


class ListedFile(msgspec.Struct, frozen=True):
    """The entry of one file in a folder's list of files."""

    size: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    files: dict[str, ListedFile]
    sha256: str  # of the list above, so that a change in it shows too


def write_folder(folder: Path, files: Mapping[str, Content]) -> None:
    """Writes a folder with these files at `folder`, replacing an existing one.

    The files are written and synced under a hidden name beside it, then renamed into place. A sync
    that fails is not tried again: what the disk has then is unknown, so all of it is thrown away.

    Raises:
        StorageError: the disk is full, read-only or failed; there is no trace of the folder.
    """
    unique = uuid.uuid4().hex[:12]
    staging = folder.parent / f".{folder.name}.{unique}.new"
    aside = folder.parent / f".{folder.name}.{unique}.old"
    placed = False
    try:
        with translate_os_errors(f"{folder.name} could not be written"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            staging.mkdir()
            written = {name: _write_file(staging / name, each) for name, each in files.items()}
            _write_file(staging / MANIFEST, _manifest_of(written))
            _sync(staging)
            crashpoints.passing("engine.folder.synced", folder.parent.name)
            # A non-empty folder cannot be renamed over, so an old one steps aside first.
            if folder.exists():
                folder.rename(aside)
            staging.rename(folder)
            placed = True
            crashpoints.passing("engine.folder.renamed", folder.parent.name)
            _sync(folder.parent)
    except BaseException:
        shutil.rmtree(folder if placed else staging, ignore_errors=True)
        if aside.exists() and not folder.exists():
            aside.rename(folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def verify_folder(folder: Path) -> None:
    """Returns if every file is as it was written; a folder without a list is accepted as it is.

    Raises:
        StorageError: a file was changed, cut, exchanged or lost; the message names it.
    """
    for name, file in listed_files(folder).items():
        path = folder / name
        with translate_os_errors(f"{folder.name} could not be read"):
            if not path.is_file():
                raise damaged(folder.name, name, "it is missing")
            size = path.stat().st_size
            if size != file.size:
                raise damaged(folder.name, name, f"it has {size} bytes, not {file.size}")
            with path.open("rb") as handle:
                found = hashlib.file_digest(handle, "sha256").hexdigest()
        if found != file.sha256:
            raise damaged(folder.name, name, "its content is not what was written")


def listed_files(folder: Path) -> dict[str, ListedFile]:
    """Returns the files that the folder's list names; none if it has no list.

    Raises:
        StorageError: the list is damaged.
    """
    path = folder / MANIFEST
    with translate_os_errors(f"{folder.name} could not be read"):
        if not path.is_file():
            return {}
        raw = path.read_bytes()
    return decode_manifest(raw, folder.name)


def decode_manifest(raw: bytes, name: str) -> dict[str, ListedFile]:
    """Decodes the list of files of the folder of this name.

    Raises:
        StorageError: it is damaged.
    """
    try:
        manifest = msgspec.json.decode(raw, type=_Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(name, MANIFEST, "it cannot be read") from error
    listed = msgspec.json.encode(manifest.files, order="sorted")
    if hashlib.sha256(listed).hexdigest() != manifest.sha256:
        raise damaged(name, MANIFEST, "its content is not what was written")
    return manifest.files


def manifest_digest(folder: Path) -> str | None:
    """Returns the digest of the folder's list of files; None if it has no list."""
    path = folder / MANIFEST
    with translate_os_errors(f"{folder.name} could not be read"):
        if not path.is_file():
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()


def payload_files(folder: Path) -> list[Path]:
    """Returns the folder's files by name, without the list of files."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)


def folder_size_bytes(folder: Path) -> int:
    """Returns the total bytes of the folder's files, without the list of files."""
    return sum(path.stat().st_size for path in payload_files(folder))


def _write_file(path: Path, content: Content) -> ListedFile:
    """Writes one file; returns its entry. Synced by the handle that wrote it, so that no
    error is lost."""
    size, digest = 0, hashlib.sha256()
    with path.open("xb", buffering=0) as handle:
        for part in (content,) if isinstance(content, bytes) else content():
            digest.update(part)
            size += len(part)
            left = memoryview(part)
            while left:
                left = left[handle.write(left) :]
        crashpoints.passing("engine.folder.begun", path.parent.parent.name)
        os.fsync(handle.fileno())
    return ListedFile(size=size, sha256=digest.hexdigest())


def _manifest_of(files: dict[str, ListedFile]) -> bytes:
    listed = msgspec.json.encode(files, order="sorted")
    manifest = _Manifest(files=files, sha256=hashlib.sha256(listed).hexdigest())
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
