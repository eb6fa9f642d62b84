"""Folders in an object store (S3, Google Cloud Storage, Azure), each complete or absent.

A folder is one object per file and, written last and only if absent, an object with the list of
them. A folder without its list does not exist: a writer that crashes leaves objects that are never
read, and a sweep removes them. Object names contain the hash of the content, so two writers of one
folder cannot mix their files, and a retry skips the files that were already written.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import obstore
import obstore.store
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from tinkex import crashpoints
from tinkex.files.atomic_folder import (
    MANIFEST,
    ListedFile,
    decode_manifest,
    listed_files,
    manifest_digest,
    write_folder,
)
from tinkex.files.depot_claim import CLAIM
from tinkex.files.errors import StorageError
from tinkex.files.os_errors import damaged

__all__ = ["ObjectDepot"]

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_SCHEMES = ("s3", "gs", "az")
_RETRY_S = 10.0
_WAIT_S = 0.3
_LIBRARY_RETRY_S = 2.0
_REQUEST_S = 60.0
_PART_BYTES = 8 << 20


class ObjectDepot:
    """Folders under one prefix of an object store. Any thread may use it.

    Every method raises `StorageError` with the code `depot-failed` if the store still fails after
    ten seconds of retries, or refuses access.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = _open(url)

    def claim(self, database_id: str) -> str:
        """The id of the database that owns the depot: this one, if the depot was unclaimed.

        A server deletes folders that its database does not list, so two must never share a depot.
        """

        def put_or_get() -> str:
            try:
                obstore.put(self._store, CLAIM, database_id.encode(), mode="create")
                return database_id
            except AlreadyExistsError:
                return bytes(obstore.get(self._store, CLAIM).bytes()).decode(errors="replace")

        return self._call("The depot could not be opened", put_or_get)

    def put(self, kind: str, folder_id: str, folder: Path) -> None:
        """Copies the folder into the store.

        Raises:
            StorageError: another folder has this id.
        """
        files = listed_files(folder)
        if not files:
            raise damaged(folder.name, MANIFEST, "it is missing")

        def put_all() -> None:
            there = set(self._names(kind, folder_id))
            for name, file in files.items():
                key = _file_key(kind, folder_id, name, file)
                if key not in there:
                    obstore.put(self._store, key, folder / name, chunk_size=_PART_BYTES)
                crashpoints.passing("depot.put.file", kind)
            self._put_manifest(kind, folder_id, folder)

        self._call(f"{folder_id} could not be written", put_all)
        crashpoints.passing("depot.put.whole", kind)

    def get(self, kind: str, folder_id: str, folder: Path) -> None:
        """Writes the folder to the local disk, where it appears whole or not at all.

        Raises:
            StorageError: it is not in the store, is damaged, or the local write failed.
        """

        def get_all() -> bytes:
            raw = self._manifest(kind, folder_id)
            if raw is None:
                raise damaged(folder_id, MANIFEST, "it is missing in the object store")
            files = decode_manifest(raw, folder_id)
            write_folder(
                folder,
                {
                    name: self._reader(_file_key(kind, folder_id, name, file), folder_id, name)
                    for name, file in files.items()
                },
            )
            return raw

        raw = self._call(f"{folder_id} could not be read", get_all)
        if manifest_digest(folder) != hashlib.sha256(raw).hexdigest():
            shutil.rmtree(folder, ignore_errors=True)
            raise damaged(folder_id, MANIFEST, "files in the object store are not what it lists")

    def files(self, kind: str, folder_id: str) -> dict[str, ListedFile]:
        """The files of the folder.

        Raises:
            StorageError: it is not in the store, or its list is damaged.
        """
        raw = self._read_manifest(kind, folder_id)
        if raw is None:
            raise damaged(folder_id, MANIFEST, "it is missing in the object store")
        return decode_manifest(raw, folder_id)

    def digest(self, kind: str, folder_id: str) -> str | None:
        """The hash of the folder's list; None if the folder is not there."""
        raw = self._read_manifest(kind, folder_id)
        return None if raw is None else hashlib.sha256(raw).hexdigest()

    def exists(self, kind: str, folder_id: str) -> bool:
        """Whether the whole folder is there."""
        return self._read_manifest(kind, folder_id) is not None

    def delete(self, kind: str, folder_id: str) -> None:
        """Removes the folder, if it exists.

        The list is deleted first: after a crash the remaining objects are not a folder.
        """

        def delete_all() -> None:
            self._delete([_manifest_key(kind, folder_id)])
            crashpoints.passing("depot.delete.listed", kind)
            self._delete(self._names(kind, folder_id))

        self._call(f"{folder_id} could not be deleted", delete_all)

    def ids(self, kind: str) -> set[str]:
        """The ids of the complete folders of a kind."""
        keys = [item["path"] for item in self._items(kind)]
        return {key.split("/")[-2] for key in keys if key.endswith(f"/{MANIFEST}")}

    def sweep(self, kind: str, known: set[str], *, older_than_s: float) -> int:
        """Removes unreferenced folders above this age; returns their number.

        The age matters because a folder is written before the row that refers to it.
        """
        oldest = datetime.now(UTC) - timedelta(seconds=older_than_s)
        newest: dict[str, datetime] = {}
        for item in self._items(kind):
            folder_id = item["path"].split("/")[-2]
            newest[folder_id] = max(item["last_modified"], newest.get(folder_id, oldest))
        left = [each for each, when in newest.items() if each not in known and when <= oldest]
        for folder_id in left:
            self.delete(kind, folder_id)
        return len(left)

    def signed_url(
        self, kind: str, folder_id: str, name: str, file: ListedFile, *, expires_s: float
    ) -> str:
        """A signed address, from which the file can be downloaded for a limited time."""
        key = _file_key(kind, folder_id, name, file)
        return self._call(
            f"the address of {name} could not be signed",
            lambda: str(obstore.sign(self._store, "GET", key, timedelta(seconds=expires_s))),
        )

    def _items(self, kind: str) -> list[Any]:
        return self._call(f"{kind} could not be listed", lambda: list(self._list(f"{kind}/")))

    def _read_manifest(self, kind: str, folder_id: str) -> bytes | None:
        return self._call(f"{folder_id} could not be read", lambda: self._manifest(kind, folder_id))

    def _put_manifest(self, kind: str, folder_id: str, folder: Path) -> None:
        raw = (folder / MANIFEST).read_bytes()
        try:
            obstore.put(self._store, _manifest_key(kind, folder_id), raw, mode="create")
        except AlreadyExistsError:
            # The answer to an earlier try was lost, or another writer took the id.
            if self._manifest(kind, folder_id) != raw:
                raise StorageError(
                    f"The object store already has another folder {kind}/{folder_id}; it was not "
                    "changed. Give every server its own --depot.",
                    code="depot-failed",
                ) from None

    def _manifest(self, kind: str, folder_id: str) -> bytes | None:
        try:
            found = obstore.get(self._store, _manifest_key(kind, folder_id))
        except (NotFoundError, FileNotFoundError):
            return None
        return bytes(found.bytes())

    def _reader(self, key: str, folder_id: str, name: str) -> Callable[[], Iterable[Any]]:
        def read() -> Iterator[Any]:
            try:
                yield from obstore.get(self._store, key).stream(_PART_BYTES)
            except (NotFoundError, FileNotFoundError) as error:
                raise damaged(folder_id, name, "it is missing in the object store") from error

        return read

    def _names(self, kind: str, folder_id: str) -> list[str]:
        return [item["path"] for item in self._list(f"{kind}/{folder_id}/")]

    def _list(self, prefix: str) -> Iterator[Any]:
        for chunk in obstore.list(self._store, prefix):
            yield from chunk

    def _delete(self, keys: list[str]) -> None:
        try:
            if keys:
                obstore.delete(self._store, keys)
        except (NotFoundError, FileNotFoundError):
            return

    def _call(self, what: str, call: Callable[[], T]) -> T:
        """The result of a call, which is repeated as a whole while the store fails: the client
        library's own retries end sooner, and do not cover an answer that is cut off."""
        deadline = time.monotonic() + _RETRY_S
        while True:
            try:
                return call()
            except StorageError:
                raise
            except (PermissionDeniedError, UnauthenticatedError) as error:
                _logger.error("The object store %s refuses access: %s", self.url, _line(error))
                raise StorageError(
                    f"{what}: the object store refuses the server's credentials.",
                    code="depot-failed",
                ) from error
            except (BaseError, OSError) as error:
                _logger.error("The object store %s failed: %s", self.url, _line(error))
                if time.monotonic() >= deadline:
                    raise StorageError(
                        f"{what}: the object store of the server does not answer. No partial "
                        "folder was left. Retry when the store is available.",
                        code="depot-failed",
                    ) from error
            time.sleep(_WAIT_S)


def _open(url: str) -> Any:
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES:
        known = ", ".join(f"{each}://" for each in _SCHEMES)
        raise ValueError(f"depot={url!r} is not a depot: write a folder, or one of {known}.")
    return obstore.store.from_url(
        url,
        # Plain HTTP is used only if the operator's endpoint begins with http://.
        client_options={"timeout": timedelta(seconds=_REQUEST_S), "allow_http": True},
        retry_config={"retry_timeout": timedelta(seconds=_LIBRARY_RETRY_S)},
    )


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _manifest_key(kind: str, folder_id: str) -> str:
    return f"{kind}/{folder_id}/{MANIFEST}"


def _file_key(kind: str, folder_id: str, name: str, file: ListedFile) -> str:
    return f"{kind}/{folder_id}/{file.sha256[:32]}-{name}"
