"""Where adapters are kept: one folder each, named by our own ids, never by a user's text.

Folders are on a disk. With a depot, an object store is their home and the disk holds copies: what
is written must be published, and fetched before it is read. Without one both do nothing.
"""

from __future__ import annotations

import logging
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from tinkex.files.atomic_folder import (
    MANIFEST,
    manifest_digest,
    payload_files,
    verify_folder,
    write_folder,
)
from tinkex.files.errors import StorageError
from tinkex.files.os_errors import damaged
from tinkex.store.checkpoints import Checkpoint

if TYPE_CHECKING:  # needs a package that is installed for object stores only
    from tinkex.depot.folder_cache import FolderCache

_logger = logging.getLogger(__name__)

_PART_BYTES = 1 << 20
_SWEPT_AFTER_S = 24 * 3600.0
"""A folder is in the depot before the row that names it; a day is longer than that can take."""
_ID = re.compile(r"[0-9a-f]{32}")


class DataFolders:
    """The folders under a data directory: checkpoints, recovery snapshots, ephemeral samplers."""

    KINDS = ("checkpoints", "snapshots", "samplers")

    def __init__(self, root: Path, copies: FolderCache | None = None) -> None:
        self.root = root
        self._copies = copies
        for kind in self.KINDS:
            (root / kind).mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Returns when uploads that were begun have ended."""
        if self._copies is not None:
            self._copies.close()

    @staticmethod
    def new_id() -> str:
        """A fresh folder name."""
        return uuid.uuid4().hex

    def checkpoint(self, folder: str) -> Path:
        """The folder of a checkpoint."""
        return self._path("checkpoints", folder)

    def snapshot(self, folder: str) -> Path:
        """The folder of a recovery snapshot."""
        return self._path("snapshots", folder)

    def sampler(self, folder: str) -> Path:
        """The folder of an ephemeral sampler."""
        return self._path("samplers", folder)

    def publish(self, path: Path) -> None:
        """Returns when a folder that was written here is where others find it.

        Raises:
            StorageError: the depot does not take it; there is no trace of the folder.
        """
        if self._copies is not None:
            self._copies.publish(path)

    def publish_when_done(self, path: Path, written: Future[int]) -> Future[int]:
        """What `written` gives, once the folder is also published."""
        return written if self._copies is None else self._copies.publish_when_done(path, written)

    def fetch(self, path: Path) -> Path:
        """The folder, on this disk.

        Raises:
            StorageError: it is lost or damaged, or the depot does not answer.
        """
        return path if self._copies is None else self._copies.fetch(path)

    def exists(self, path: Path) -> bool:
        """Whether the folder is here or can be fetched."""
        return path.exists() if self._copies is None else self._copies.exists(path)

    def signed_urls(self, path: Path, expires_s: float) -> dict[str, str] | None:
        """An address for each of the folder's files in the depot; None if there are none."""
        return None if self._copies is None else self._copies.signed_urls(path, expires_s)

    def checked(self, checkpoint: Checkpoint) -> Path:
        """The checkpoint's folder, if it is the one that was saved.

        Raises:
            StorageError: it is another one, or lost.
        """
        folder = self.checkpoint(checkpoint.checkpoint_id)
        if checkpoint.digest is not None and self.digest(folder) != checkpoint.digest:
            is_there = self.exists(folder)
            how = "it is not the one that was saved here" if is_there else "it is missing"
            raise damaged(checkpoint.tinker_path, MANIFEST, how)
        return folder

    def digest(self, path: Path) -> str | None:
        """The folder's digest, from this disk or the depot; None if the folder is lost."""
        if path.exists() or self._copies is None:
            return manifest_digest(path)
        return self._copies.depot.digest(path.parent.name, path.name)

    def copy_checkpoint(self, source: Checkpoint, target: str) -> None:
        """Gives a checkpoint's files a second folder, which appears whole or not at all."""
        folder = self.fetch(self.checked(source))
        verify_folder(folder)
        files = payload_files(folder)
        write_folder(self.checkpoint(target), {path.name: _copier(path) for path in files})
        self.publish(self.checkpoint(target))

    def remove(self, path: Path) -> None:
        """Deletes a folder of ours; one that is not there is fine."""
        if self._copies is None:
            shutil.rmtree(path, ignore_errors=True)
            return
        try:
            self._copies.remove(path)
        except StorageError as error:
            _logger.warning("A later sweep deletes %s/%s: %s", path.parent.name, path.name, error)

    def paths(self, kind: str) -> list[Path]:
        """All folders of a kind on this disk, those that are being written too."""
        return list((self.root / kind).iterdir())

    def take_up(self, paths: list[Path], known: set[str]) -> None:
        """Makes the folders of a kind agree with the rows: deletes what a crash left over.

        With a depot, folders that are here only and have a row are published: they are from the
        time before there was one.
        """
        for path in paths:
            if path.name not in known:
                shutil.rmtree(path, ignore_errors=True)
        if self._copies is not None:
            self._copies.take_up([path for path in paths if path.name in known])

    def sweep(self, kind: str, known: set[str]) -> int:
        """How many folders of a kind were deleted in the depot that are old and have no row."""
        if self._copies is None:
            return 0
        return self._copies.depot.sweep(kind, known, older_than_s=_SWEPT_AFTER_S)

    def remove_staging(self, folder: Path) -> None:
        """Deletes what an engine left of a folder that it was writing when it died."""
        for path in folder.parent.glob(f".{folder.name}.*"):
            self.remove(path)

    def _path(self, kind: str, folder: str) -> Path:
        assert _ID.fullmatch(folder), "folders are named by our ids"
        return self.root / kind / folder


def _copier(source: Path) -> Callable[[], Iterator[bytes]]:
    def read() -> Iterator[bytes]:
        with source.open("rb") as handle:
            while part := handle.read(_PART_BYTES):
                yield part

    return read
