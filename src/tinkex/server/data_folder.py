"""The folder in which a server keeps everything: private, and of one server at a time.

With PostgreSQL it is of one database at a time: which of its servers may write is decided by the
leader's lease, so a leader that is stopped (SIGSTOP) does not keep the next one out of the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tinkex.errors import ConfigError

__all__ = ["holds_files_of", "lock_folder", "make_private", "share_folder", "usable"]


def make_private(folder: Path) -> None:
    """Makes the folder unless it is there, for this user alone.

    Raises:
        ConfigError: that cannot be done.
    """
    with usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def lock_folder(folder: Path) -> IO[str]:
    """A handle that holds the folder's lock, with this process's id in the file.

    Raises:
        ConfigError: another server holds it, or the folder cannot be written to.
    """
    handle = _open_lock(folder)
    if not _try_lock(handle, fcntl.LOCK_EX):
        raise _in_use(folder, handle)
    _write_lock(folder, handle, str(os.getpid()))
    return handle


def share_folder(folder: Path, store_id: str) -> IO[str]:
    """A handle that keeps servers of other databases out of the folder while it is open.

    Raises:
        ConfigError: one of them uses it, or the folder cannot be written to.
    """
    handle = _open_lock(folder)
    if _try_lock(handle, fcntl.LOCK_EX):
        _write_lock(folder, handle, store_id)
    # Another server may come between the two locks, so what it wrote is looked at in any case.
    if not _try_lock(handle, fcntl.LOCK_SH) or _read_lock(handle) != store_id:
        raise _in_use(folder, handle)
    return handle


def holds_files_of(folder: Path, store_id: str) -> bool:
    """Whether the last server that used the folder had this database."""
    with suppress(OSError), (folder / "lock").open() as handle:
        return _read_lock(handle) == store_id
    return False


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Converts an OSError inside into one of the data folder.

    Raises:
        ConfigError: there was one.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"The data folder {folder} cannot be used: {error.strerror}.",
            hint="Make room or make it writable, or choose another --data-dir.",
            code="data-dir-unusable",
        ) from error


def _open_lock(folder: Path) -> IO[str]:
    with usable(folder):
        return (folder / "lock").open("a+")


def _try_lock(handle: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write_lock(folder: Path, handle: IO[str], text: str) -> None:
    try:
        with usable(folder):
            handle.truncate(0)
            handle.write(text)
            handle.flush()
    except ConfigError:
        with suppress(OSError):  # what was not written is tried again at the end
            handle.close()
        raise


def _read_lock(handle: IO[str]) -> str:
    handle.seek(0)
    return handle.read(64)


def _in_use(folder: Path, handle: IO[str]) -> ConfigError:
    """The refusal of a folder that another server uses, with its process as far as that is known.

    Closes the handle.
    """
    holder = ""
    with suppress(OSError), handle:
        text = _read_lock(handle)
        if text.isdigit() and len(text) < 20:
            holder = f" (process {text})"
        elif text:
            holder = " with another database"
    return ConfigError(
        f"Another server uses the data folder {folder}{holder}.",
        hint="Stop it, or choose another --data-dir.",
        code="data-dir-in-use",
    )
