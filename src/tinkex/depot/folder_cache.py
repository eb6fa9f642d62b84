"""Local copies of folders of an object store, up to a number of bytes.

A folder that is not on the local disk is downloaded, once for all threads that need it at the same
time. When the copies exceed the limit, the least recently used are removed. One that was
used within the last minutes stays: it may still be read.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tinkex.depot.object_depot import ObjectDepot
from tinkex.files.atomic_folder import folder_size_bytes
from tinkex.files.errors import StorageError

__all__ = ["FolderCache"]

_logger = logging.getLogger(__name__)

_READING_S = 600.0
_MAX_UPLOADS = 4


class _Copy(NamedTuple):
    size_bytes: int
    used_at: float


class FolderCache:
    """Folders on the local disk that are copies of those in a depot. Any thread may use it.

    The last two parts of a folder's path are its kind and its id. A folder that was written here
    may be evicted once it is published, not before.
    """

    def __init__(
        self,
        depot: ObjectDepot,
        max_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.depot = depot
        self._max_bytes = max_bytes
        self._now = now
        self._lock = threading.Lock()
        self._copies: dict[Path, _Copy] = {}
        self._downloads: dict[Path, threading.Lock] = {}
        self._uploads = ThreadPoolExecutor(_MAX_UPLOADS, thread_name_prefix="tinkex-upload")

    @property
    def size_bytes(self) -> int:
        """The bytes of all copies."""
        with self._lock:
            return sum(each.size_bytes for each in self._copies.values())

    def take_up(self, paths: list[Path]) -> None:
        """Counts the folders as copies; those that are not in the depot are published."""
        kinds = {path.parent.name for path in paths}
        whole = {(kind, folder_id) for kind in kinds for folder_id in self.depot.ids(kind)}
        for path in paths:
            if (path.parent.name, path.name) in whole:
                self._record(path)
            else:
                self._upload(path)  # the only copy: it stays if the upload fails
        self._evict()

    def publish(self, path: Path) -> None:
        """Copies a folder that was written here into the depot; from then on it may be evicted.

        Raises:
            StorageError: the upload failed; the local folder was removed too.
        """
        try:
            self._upload(path)
        except StorageError:
            shutil.rmtree(path, ignore_errors=True)
            raise
        self._evict()

    def publish_when_done(self, path: Path, written: Future[int]) -> Future[int]:
        """The result of `written`, once the folder is published."""
        published: Future[int] = Future()

        def publish() -> None:
            try:
                size_bytes = written.result()
                self.publish(path)
            except BaseException as error:
                published.set_exception(error)
            else:
                published.set_result(size_bytes)

        written.add_done_callback(lambda _: self._uploads.submit(publish))
        return published

    def close(self) -> None:
        """Waits for the uploads in progress."""
        self._uploads.shutdown()

    def fetch(self, path: Path) -> Path:
        """The path of the folder's local copy, which is downloaded if needed."""
        with self._downloading(path):
            if not path.exists():
                self.depot.get(path.parent.name, path.name, path)
                self._record(path)
            else:
                self._touch(path)
        self._evict()
        return path

    def exists(self, path: Path) -> bool:
        """Whether the folder is on the local disk or in the depot."""
        return path.exists() or self.depot.exists(path.parent.name, path.name)

    def signed_urls(self, path: Path, expires_s: float) -> dict[str, str]:
        """An address in the object store for each of the folder's files."""
        kind, folder_id = path.parent.name, path.name
        return {
            name: self.depot.signed_url(kind, folder_id, name, file, expires_s=expires_s)
            for name, file in self.depot.files(kind, folder_id).items()
        }

    def remove(self, path: Path) -> None:
        """Removes the folder from the local disk and the depot, if it exists."""
        with self._lock:
            self._copies.pop(path, None)
        shutil.rmtree(path, ignore_errors=True)
        self.depot.delete(path.parent.name, path.name)

    @contextmanager
    def _downloading(self, path: Path) -> Iterator[None]:
        with self._lock:
            lock = self._downloads.setdefault(path, threading.Lock())
        try:
            with lock:
                yield
        finally:
            with self._lock:
                if not lock.locked():
                    self._downloads.pop(path, None)

    def _upload(self, path: Path) -> None:
        self.depot.put(path.parent.name, path.name, path)
        self._record(path)

    def _record(self, path: Path) -> None:
        copy = _Copy(folder_size_bytes(path), self._now())
        with self._lock:
            self._copies[path] = copy

    def _touch(self, path: Path) -> None:
        with self._lock:
            if (copy := self._copies.get(path)) is not None:
                self._copies[path] = copy._replace(used_at=self._now())

    def _evict(self) -> None:
        for path in self._to_evict():
            _logger.info("Evicted the local copy of %s/%s.", path.parent.name, path.name)
            shutil.rmtree(path, ignore_errors=True)

    def _to_evict(self) -> list[Path]:
        """The copies to delete, already taken out of the byte count."""
        chosen: list[Path] = []
        with self._lock:
            excess = sum(each.size_bytes for each in self._copies.values()) - self._max_bytes
            unused_since = self._now() - _READING_S
            for path, copy in sorted(self._copies.items(), key=lambda item: item[1].used_at):
                if excess <= 0 or copy.used_at > unused_since:
                    break
                excess -= copy.size_bytes
                chosen.append(path)
            for path in chosen:
                del self._copies[path]
        return chosen
