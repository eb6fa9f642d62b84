"""Disk space kept aside for writes that free space, so that a full disk can be emptied again.

A delete is a row first and its files after; on a full disk the row's transaction has no space in
SQLite's write-ahead log. A file beside the database holds that space. It is released for one such
write and taken again at once, as far as there is space; whatever was freed meanwhile fills it up
before anything else is written. The file outlives the server, which may have to start on a full
disk, and a kill at any moment leaves no more than a reserve that is too small for a while.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["Reserve"]

_SHARE = 16  # a small disk keeps no more than this part of itself aside
_STEP_BYTES = 64 * 1024  # a reserve that lacks less is left as it is


class Reserve:
    """A file of up to `max_bytes` beside an SQLite file. Not thread-safe.

    It raises no errors: without a reserve the disk is used as usual.
    """

    def __init__(self, database: Path, max_bytes: int) -> None:
        self._path = database.with_name(database.name + "-reserve")
        self._max_bytes = max_bytes

    def release(self) -> None:
        """Frees the reserved space."""
        with suppress(OSError):  # without one there is nothing to release
            os.truncate(self._path, 0)

    def release_if_short(self) -> None:
        """Frees the reserved space if the disk has less free space than that: a
        start writes too."""
        with suppress(OSError):
            if self._free_bytes() < self._target_bytes():
                self.release()

    def restore(self) -> None:
        """Reserves the space again, as far as the disk has it."""
        with suppress(OSError):
            missing = min(self._target_bytes() - self._held_bytes(), self._free_bytes())
            while missing >= _STEP_BYTES and not self._grow(missing):
                missing //= 2

    def _grow(self, num_bytes: int) -> bool:
        held = self._held_bytes()
        try:
            with open(self._path, "ab", opener=_open_private) as file:
                _allocate(file.fileno(), held, num_bytes)
        except OSError:  # another process took it first, or the file system counts otherwise
            with suppress(OSError):
                os.truncate(self._path, held)
            return False
        return True

    def _held_bytes(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _free_bytes(self) -> int:
        state = os.statvfs(self._path.parent)
        return state.f_bavail * state.f_frsize

    def _target_bytes(self) -> int:
        state = os.statvfs(self._path.parent)
        return min(self._max_bytes, state.f_blocks * state.f_frsize // _SHARE)


def _open_private(path: str, flags: int) -> int:
    """Opens the file for its owner alone, like the database beside it."""
    return os.open(path, flags, 0o600)


def _allocate(file: int, start: int, num_bytes: int) -> None:
    if sys.platform == "darwin":  # has no such call
        os.pwrite(file, bytes(num_bytes), start)
    else:
        os.posix_fallocate(file, start, num_bytes)
