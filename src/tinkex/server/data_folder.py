"""The folder in which a server keeps everything: private, and of one server at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tinkex.errors import ConfigError

__all__ = ["lock_folder", "make_private", "usable"]


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
    with usable(folder):
        handle = (folder / "lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(handle)
        handle.close()
        raise ConfigError(
            f"Another server uses the data folder {folder}{holder}.",
            hint="Stop it, or choose another --data-dir.",
            code="data-dir-in-use",
        ) from error
    try:
        with usable(folder):
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
    except ConfigError:
        with suppress(OSError):  # what was not written is tried again at the end
            handle.close()
        raise
    return handle


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Tells an OSError inside as one of the data folder.

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


def _holder(handle: IO[str]) -> str:
    """The process that wrote itself into the lock, as far as it did."""
    with suppress(OSError):
        handle.seek(0)
        if (text := handle.read(20)).isdigit():
            return f" (process {text})"
    return ""
