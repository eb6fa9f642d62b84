"""Stored keys: one file of the user's, with the key of each server that was logged in to.

Reads and writes the file, which only its user may read. Which file that is, and when its keys are
used, is decided by `config`; keys are checked by `tinkex auth login`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tinkex.errors import ConfigError
from tinkex.telemetry.redaction import Secret

__all__ = ["Credentials", "read", "save", "update"]

_VERSION: Final = 1
_OTHERS: Final = 0o077


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys by the normalised address of their server, and the server that was last logged in
    to, which is used where none is named."""

    keys: dict[str, Secret] = field(default_factory=dict)
    default: str | None = None

    def with_key(self, base_url: str, key: str) -> Credentials:
        """The same with the key of this server, which becomes the default."""
        return Credentials({**self.keys, base_url: Secret(key)}, base_url)

    def without(self, base_url: str) -> Credentials:
        """The same without the key of this server."""
        keys = {url: key for url, key in self.keys.items() if url != base_url}
        return Credentials(keys, None if self.default == base_url else self.default)


def read(path: Path) -> Credentials | None:
    """What the file holds; None if there is no file.

    Raises:
        ConfigError: others may read or change the file, or it is none of ours.
    """
    try:
        with path.open(encoding="utf-8") as file:
            _refuse_others(path, os.fstat(file.fileno()))
            found = _parsed(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"The credentials file {path} cannot be read: {error.strerror}.",
            hint="Make it readable for yourself, or set TINKEX_CREDENTIALS_FILE to another file.",
            code="bad-credentials-file",
        ) from None
    if found is None:
        raise ConfigError(
            f"The credentials file {path} is not one that 'tinkex auth login' wrote.",
            hint=f"Remove it (rm {shlex.quote(str(path))}), then run 'tinkex auth login'.",
            code="bad-credentials-file",
        )
    return found


def save(path: Path, credentials: Credentials) -> None:
    """Writes the file, readable for its user alone; a reader sees the old content or the new."""
    import json
    import tempfile

    path = path.resolve()  # a link stays one
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    document = {
        "version": _VERSION,
        "default": credentials.default,
        "servers": {url: {"api_key": key.reveal()} for url, key in credentials.keys.items()},
    }
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def update(path: Path, change: Callable[[Credentials], Credentials]) -> None:
    """Saves what `change` makes of the file's content, one process after the other; a file without
    keys is removed. Of a link the target is changed, and the link stays.

    Raises:
        ConfigError: others may read or change the file, or it is none of ours.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(path.parent):
        changed = change(read(path) or Credentials())
        if changed.keys:
            save(path, changed)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two changes at once would lose a key. The folder is locked, as the file is replaced."""
    if os.name != "posix":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _refuse_others(path: Path, status: os.stat_result) -> None:
    """A file that others can read has disclosed the key; one they can write may name any server."""
    if os.name != "posix":
        return
    if status.st_mode & _OTHERS:
        raise ConfigError(
            f"The credentials file {path} is open to other users of this machine "
            f"(mode {status.st_mode & 0o777:o}), and it holds API keys.",
            hint=f"Run: chmod 600 {shlex.quote(str(path))}",
            code="open-credentials-file",
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"The credentials file {path} belongs to another user.",
            hint="Run 'tinkex auth login' with a file of your own (TINKEX_CREDENTIALS_FILE).",
            code="open-credentials-file",
        )


def _parsed(file: IO[str]) -> Credentials | None:
    """The content; None if it is of no use. Raises nothing: its frame holds keys in the clear."""
    import json

    try:
        document = json.load(file)
        if document["version"] != _VERSION:
            return None
        keys = {str(url): str(entry["api_key"]) for url, entry in document["servers"].items()}
        default = document["default"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    secrets = {url: Secret(key) for url, key in keys.items()}
    return Credentials(
        secrets, default if isinstance(default, str) and default in secrets else None
    )
