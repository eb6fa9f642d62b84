"""Where adapters are on disk: one folder each, named by our own ids, never by a user's text."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from tinkex.files.atomic_folder import (
    MANIFEST,
    manifest_digest,
    payload_files,
    verify_folder,
    write_folder,
)
from tinkex.files.os_errors import damaged
from tinkex.store.checkpoints import Checkpoint

_PART_BYTES = 1 << 20
_ID = re.compile(r"[0-9a-f]{32}")


class DataFolders:
    """The folders under a data directory: checkpoints, recovery snapshots, ephemeral samplers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for kind in ("checkpoints", "snapshots", "samplers"):
            (root / kind).mkdir(parents=True, exist_ok=True)

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

    def checked(self, checkpoint: Checkpoint) -> Path:
        """The checkpoint's folder, if it is the one that was saved.

        Raises:
            StorageError: it is another one, or lost.
        """
        folder = self.checkpoint(checkpoint.checkpoint_id)
        if checkpoint.digest is not None and manifest_digest(folder) != checkpoint.digest:
            how = "it is not the one that was saved here" if folder.exists() else "it is missing"
            raise damaged(checkpoint.tinker_path, MANIFEST, how)
        return folder

    def copy_checkpoint(self, source: Checkpoint, target: str) -> None:
        """Gives a checkpoint's files a second folder, which appears whole or not at all."""
        folder = self.checked(source)
        verify_folder(folder)
        files = payload_files(folder)
        write_folder(self.checkpoint(target), {path.name: _copier(path) for path in files})

    def remove(self, path: Path) -> None:
        """Deletes a folder of ours; one that is not there is fine."""
        shutil.rmtree(path, ignore_errors=True)

    def remove_unknown(self, kind: str, known: set[str]) -> int:
        """How many folders of a kind were left over from a crash; they are gone now."""
        unknown = [path for path in (self.root / kind).iterdir() if path.name not in known]
        for path in unknown:
            self.remove(path)
        return len(unknown)

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
