"""The error of a disk: files that could not be written or read, with a code clients can act on."""

from __future__ import annotations

__all__ = ["STORAGE_CODES", "StorageError"]

STORAGE_CODES = frozenset(
    {"disk-full", "disk-read-only", "disk-failed", "depot-failed", "files-damaged"}
)


class StorageError(OSError):
    """Files could not be written, or differ from what was written; no part of them was used.

    `code` is one of STORAGE_CODES; `field` names a file.
    """

    def __init__(self, message: str, *, code: str, field: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.field = field
