"""Converts the system's errors about files: disk full, no permission, a failing disk, damage."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from tinkex.files.errors import StorageError

__all__ = ["damaged", "translate_os_errors"]

_CODES = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EFBIG: "disk-full",
    errno.EROFS: "disk-read-only",
    errno.EACCES: "disk-read-only",
    errno.EPERM: "disk-read-only",
}
_WORDS = {
    "disk-full": "the disk of the server is full",
    "disk-read-only": "the disk of the server cannot be written to",
    "disk-failed": "the disk of the server failed",
}


@contextmanager
def translate_os_errors(what: str) -> Iterator[None]:
    """Converts a system error in the `with` block into one that says what could not
    be done and why."""
    try:
        yield
    except StorageError:
        raise  # it says so already
    except OSError as error:
        code = _CODES.get(error.errno or 0, "disk-failed")
        raise StorageError(
            f"{what}: {_WORDS[code]}. No partial file was left. Retry when the disk is available.",
            code=code,
        ) from error


def damaged(folder: str, name: str, how: str) -> StorageError:
    """Returns the error for a file that differs from what was saved."""
    return StorageError(
        f"The file {name!r} of {folder} is damaged: {how}. It is not used; load another "
        "checkpoint, and have the operator check the disk.",
        code="files-damaged",
        field=name,
    )
