"""The secret that signs tokens and download links: a private file, never a row of the database.

One secret per line, as hexadecimal characters. The first line signs. Each further line is a secret
that was rotated out, and the time (seconds since the epoch) until which its signatures are still
accepted. A running server notices a changed file within two seconds; a file that went bad meanwhile
is reported and leaves the secrets in use as they are.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tinkex.errors import ConfigError
from tinkex.store.clock import not_before

__all__ = ["SecretFile", "ensure_secret_file", "rotate"]

_LOOK_EVERY_S = 2.0
_SECRET_BYTES = 32
_MAX_FILE_BYTES = 64 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_BUT_READING_GROUP = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP

_logger = logging.getLogger(__name__)


class SigningSecret(msgspec.Struct, frozen=True):
    """One secret, and when its signatures end; None for the one that signs."""

    value: bytes
    until: float | None = None

    def __repr__(self) -> str:
        return f"SigningSecret(until={self.until})"


class SecretFile:
    """The secrets in a file, read again when it changes.

    Raises:
        ConfigError: at the start, if the file is missing, malformed or not private.
    """

    def __init__(self, path: Path, *, may_be_link: bool = False) -> None:
        self._path = path
        self._may_be_link = may_be_link  # where secrets are mounted, their files often are
        self._version, self._secrets = self._read()
        self._next_look = time.monotonic() + _LOOK_EVERY_S

    def newest(self) -> bytes:
        """The secret to sign with."""
        self._refresh()
        return self._secrets[0].value

    def accepted(self) -> list[bytes]:
        """The secrets whose signatures are good now, the newest first."""
        self._refresh()
        return [each.value for each in _unended(self._secrets)]

    def _refresh(self) -> None:
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_EVERY_S
        try:
            if _version_of(self._path.stat()) != self._version:
                self._version, self._secrets = self._read()
        except (ConfigError, OSError) as error:
            _logger.error("The signing secret was not read again: %s", error)

    def _read(self) -> tuple[tuple[int, ...], list[SigningSecret]]:
        return _read(self._path.resolve() if self._may_be_link else self._path)


def ensure_secret_file(path: Path) -> None:
    """Makes a private file with a new secret unless there is one; it appears whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    if os.path.lexists(path):
        return
    with _written(path, f"{secrets.token_hex(_SECRET_BYTES)}\n") as made:
        try:
            os.link(made, path)  # unlike a rename, this replaces no file made meanwhile
        except FileExistsError:
            return


def rotate(path: Path, overlap_s: float) -> None:
    """Puts a new secret first; what older ones signed is accepted for so long, and no longer.

    Raises:
        ConfigError: there is no such file, or it is malformed, not private or not writable.
    """
    with _locked_folder(path):
        _, known = _read(path)
        end = time.time() + overlap_s
        lines = [secrets.token_hex(_SECRET_BYTES)]
        if overlap_s > 0:
            ends = [(each, end if each.until is None else min(each.until, end)) for each in known]
            lines += [f"{each.value.hex()} {until:.0f}" for each, until in ends if _is_ahead(until)]
        with _written(path, "\n".join(lines) + "\n") as made:
            made.replace(path)


def _read(path: Path) -> tuple[tuple[int, ...], list[SigningSecret]]:
    """The file's version and its secrets, read from one open file that passed all checks."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except OSError as error:
        reason = "it is a symbolic link" if path.is_symlink() else error.strerror or str(error)
        raise _unusable(path, reason, "Put the file itself there.") from error
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        _require_private(path, found)
        text = file.read(_MAX_FILE_BYTES).decode("ascii", "replace")
    return _version_of(found), list(_parse(path, text))


def _require_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _unusable(path, "it is not a regular file", "Put a regular file there.")
    if found.st_uid not in (os.geteuid(), 0):
        remedy = f"Run: chown {os.geteuid()} {path}"
        raise _unusable(path, f"it belongs to another user (uid {found.st_uid})", remedy)
    # Where root mounts secrets, the server's own group is how it may read them.
    is_lent = found.st_uid == 0 and os.geteuid() != 0
    if found.st_mode & (_OTHERS_BUT_READING_GROUP if is_lent else _OTHERS):
        mode = oct(stat.S_IMODE(found.st_mode))[2:]
        remedy = f"Run: chmod 600 {path}, then 'tinkex keys rotate-signing --overlap-s 0'."
        raise _unusable(path, f"other users may read or write it (mode {mode})", remedy)


def _parse(path: Path, text: str) -> Iterator[SigningSecret]:
    for number, line in enumerate(text.splitlines() or [""], 1):
        secret = _parse_line(line, is_first=number == 1)
        if secret is None:
            wanted = "" if number == 1 else " and the time of its end"
            raise _unusable(
                path,
                f"line {number} is not a secret of 64 hexadecimal characters or more{wanted}",
                f"Make a new one: (umask 077; openssl rand -hex 32 > {path})",
            )
        yield secret


def _parse_line(line: str, *, is_first: bool) -> SigningSecret | None:
    words = line.split()
    if len(words) != (1 if is_first else 2):
        return None
    try:
        secret = SigningSecret(bytes.fromhex(words[0]), None if is_first else float(words[1]))
    except ValueError:
        return None
    has_end = secret.until is None or math.isfinite(secret.until)
    return secret if has_end and len(secret.value) >= _SECRET_BYTES else None


def _unended(known: list[SigningSecret]) -> list[SigningSecret]:
    return [each for each in known if each.until is None or _is_ahead(each.until)]


def _is_ahead(date: float) -> bool:
    return date > not_before()


def _version_of(found: os.stat_result) -> tuple[int, ...]:
    """What changes when the file or who may read it does."""
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


@contextmanager
def _written(path: Path, text: str) -> Iterator[Path]:
    """A private file with this text beside `path`, on disk, to be put in its place in the block."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 600
        made = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            yield made
            _sync_folder(path.parent)
        finally:
            made.unlink(missing_ok=True)
    except OSError as error:
        reason = f"it cannot be written: {error.strerror}"
        raise _unusable(
            path, reason, "Make its folder writable, or make room on the disk."
        ) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    """Two rotations at once would lose a secret that already signs."""
    try:
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _missing(path) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _missing(path: Path) -> ConfigError:
    return ConfigError(
        f"There is no signing secret at {path}.",
        hint="A server makes the one in its data folder at its first start. One that you name "
        f"you make yourself: (umask 077; openssl rand -hex 32 > {path})",
        code="no-signing-secret",
    )


def _unusable(path: Path, reason: str, remedy: str) -> ConfigError:
    return ConfigError(
        f"The signing secret {path} cannot be used: {reason}.",
        hint=remedy,
        code="bad-signing-secret",
    )
