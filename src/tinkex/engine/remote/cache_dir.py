"""The folder of a worker's copies: locked by its process, and empty at the start."""

from __future__ import annotations

import fcntl
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["own_cache_dir"]


@contextmanager
def own_cache_dir(base: Path) -> Iterator[Path]:
    """Returns the first of `base/0`, `base/1`, ... that no other process has locked, emptied."""
    for number in itertools.count():
        folder = base / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(folder / "folders", ignore_errors=True)
            yield folder / "folders"
            return
