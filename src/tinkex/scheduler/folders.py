"""Where adapters lie on disk: one folder each, named by our own ids, never by a user's text."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

_ID = re.compile(r"[0-9a-f]{32}")


class Folders:
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

    def remove(self, path: Path) -> None:
        """Deletes a folder of ours; one that is not there is fine."""
        shutil.rmtree(path, ignore_errors=True)

    def remove_unknown(self, kind: str, known: set[str]) -> int:
        """How many folders of a kind were left over from a crash; they are gone now."""
        unknown = [path for path in (self.root / kind).iterdir() if path.name not in known]
        for path in unknown:
            self.remove(path)
        return len(unknown)

    def _path(self, kind: str, folder: str) -> Path:
        assert _ID.fullmatch(folder), "folders are named by our ids"
        return self.root / kind / folder
