"""Classifies failed statements: a full disk, a read-only one, a damaged file, or another error.

Most causes are temporary, so the response is a 503 with a time to retry; a damaged file is not, and
the message says so.
"""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from tinkex.errors import ServerError

_ASK_OPERATOR = "Have the operator check the disk and the database."
_WORDS = {
    "disk-full": (
        "The disk of the server is full.",
        "Delete checkpoints that are not needed ('tinkex checkpoint delete' works on a full disk), "
        "or try again later; the server goes on by itself once there is space.",
    ),
    "disk-read-only": (
        "The disk of the server cannot be written to.",
        "Try again later; the server goes on by itself once it can write.",
    ),
    "disk-failed": ("The disk of the server failed.", f"Try again later. {_ASK_OPERATOR}"),
    "store-damaged": (
        "The database file is damaged.",
        f"{_ASK_OPERATOR} It has to be restored from a backup.",
    ),
}
_SQLITE = {  # the first match counts
    "SQLITE_FULL": "disk-full",
    "SQLITE_IOERR_SHMSIZE": "disk-full",  # the index of the write-ahead log does not grow
    "SQLITE_READONLY": "disk-read-only",
    "SQLITE_CANTOPEN": "disk-failed",
    "SQLITE_IOERR": "disk-failed",
    "SQLITE_CORRUPT": "store-damaged",
    "SQLITE_NOTADB": "store-damaged",
}
_POSTGRES = {
    "53100": "disk-full",
    "25006": "disk-read-only",
    "58030": "disk-failed",
    "XX001": "store-damaged",
    "XX002": "store-damaged",
}


class StoreError(ServerError):
    """The database refused or failed; nothing of the job was written."""

    code = "store-failed"
    status = 503
    retry_after_s = 2.0
    default_hint = "Retry; if it fails again, have the operator check the disk and the database."


def as_store_error(error: SQLAlchemyError) -> StoreError:
    """Returns the error that callers get in place of the database's own."""
    code = _code_of(getattr(error, "orig", None))
    if code is None:
        return StoreError(f"The database failed: {type(error).__name__}.")
    message, hint = _WORDS[code]
    return StoreError(message, hint=hint, code=code)


def is_disk_full(outcome: object) -> bool:
    """Whether this is an error of SQLAlchemy or of the driver that reports a full disk."""
    return _code_of(getattr(outcome, "orig", outcome)) == "disk-full"


def _code_of(cause: object) -> str | None:
    state = getattr(cause, "sqlstate", None)
    if state is not None:
        return _POSTGRES.get(state)
    # Extended names begin with the plain one: SQLITE_IOERR_FSYNC, SQLITE_READONLY_DIRECTORY.
    name = getattr(cause, "sqlite_errorname", None) or ""
    return next((code for plain, code in _SQLITE.items() if name.startswith(plain)), None)
