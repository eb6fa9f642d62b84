"""An SQLite file that only its owner can read, in any folder.

The write-ahead log and the index of it get the rights of the file itself when SQLite makes them.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

from sqlalchemy.engine import URL

from tinkex.errors import ConfigError
from tinkex.store.sqlite_file import sqlite_file

__all__ = ["make_private"]

_BESIDE = ("", "-wal", "-shm", "-journal", "-reserve")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_logger = logging.getLogger(__name__)


def make_private(url: URL) -> None:
    """Creates the file of this database if there is none, and removes other users' rights to it.

    Raises:
        ConfigError: other users may read it and its rights cannot be changed.
    """
    path = sqlite_file(url)
    if path is None:
        return
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        for ending in _BESIDE:
            _take_rights(path.with_name(path.name + ending))
    except OSError:
        return  # SQLite reports the error itself


def _take_rights(path: Path) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:  # the file does not exist, or SQLite reports the error
        return
    if not mode & _OTHERS:
        return
    try:
        path.chmod(mode & ~_OTHERS)
    except OSError as error:
        raise ConfigError(
            f"Other users may read the database {path} (mode {mode:o}), and this user cannot "
            f"change that: {error.strerror}.",
            hint=f"Have its owner run: chmod 600 {path}",
            code="database-not-private",
        ) from error
    _logger.warning("Other users had access to %s (mode %o); it was removed.", path, mode)
