"""Local copies: one download for many readers, the least recently used leave, unpublished stay."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from tinkex.depot.folder_cache import FolderCache
from tinkex.depot.object_depot import ObjectDepot
from tinkex.files.atomic_folder import verify_folder, write_folder
from tinkex.files.errors import StorageError

SIZE = 10_000


class Clock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def __call__(self) -> float:
        return self.time_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(bucket: str, tmp_path: Path, clock: Clock) -> FolderCache:
    (tmp_path / "snapshots").mkdir()
    return FolderCache(ObjectDepot(bucket), 2 * SIZE, clock)


def written(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "snapshots" / name
    write_folder(path, {"weights": os.urandom(SIZE)})
    return path


def test_the_least_recently_used_copies_leave_and_come_back(
    cache: FolderCache, clock: Clock, tmp_path: Path
) -> None:
    paths = [written(tmp_path, name) for name in "abc"]
    for path in paths:
        cache.publish(path)
        clock.time_s += 10_000
    assert [path.exists() for path in paths] == [False, True, True]
    assert cache.size_bytes == 2 * SIZE
    cache.fetch(paths[1])
    clock.time_s += 10_000
    verify_folder(cache.fetch(paths[0]))
    assert [path.exists() for path in paths] == [True, True, False]
    assert cache.exists(paths[2])


def test_a_copy_in_use_stays_above_the_limit(
    cache: FolderCache, clock: Clock, tmp_path: Path
) -> None:
    paths = [written(tmp_path, name) for name in "abcd"]
    for path in paths:
        cache.publish(path)
        clock.time_s += 1
    assert all(path.exists() for path in paths)


def test_a_folder_that_is_not_published_is_never_evicted(
    cache: FolderCache, clock: Clock, tmp_path: Path
) -> None:
    own = written(tmp_path, "own")
    for name in "abc":
        cache.publish(written(tmp_path, name))
        clock.time_s += 10_000
    assert own.exists()


def test_many_readers_share_one_download(
    cache: FolderCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "a")
    cache.publish(path)
    cache._copies.clear()
    path.rename(tmp_path / "gone")
    get, downloads = ObjectDepot.get, []

    def counted(self: ObjectDepot, kind: str, folder_id: str, folder: Path) -> None:
        downloads.append(folder_id)
        get(self, kind, folder_id, folder)

    monkeypatch.setattr(ObjectDepot, "get", counted)
    threads = [threading.Thread(target=cache.fetch, args=[path]) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert downloads == ["a"]
    verify_folder(path)


def test_a_removed_folder_is_gone_here_and_there(cache: FolderCache, tmp_path: Path) -> None:
    path = written(tmp_path, "a")
    cache.publish(path)
    cache.remove(path)
    assert not cache.exists(path)
    assert cache.size_bytes == 0


def test_a_new_process_takes_up_copies_and_publishes_what_was_here_before_the_depot(
    bucket: str, cache: FolderCache, tmp_path: Path
) -> None:
    kept, new = written(tmp_path, "kept"), written(tmp_path, "new")
    cache.publish(kept)
    again = FolderCache(ObjectDepot(bucket), 2 * SIZE)
    again.take_up([kept, new])
    assert again.depot.ids("snapshots") == {"kept", "new"}
    assert new.exists()
    assert again.size_bytes == 2 * SIZE


def test_a_folder_that_the_depot_does_not_take_leaves_no_trace(
    cache: FolderCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("It does not answer.", code="depot-failed")

    monkeypatch.setattr(cache.depot, "put", fail)
    first, second = written(tmp_path, "a"), written(tmp_path, "b")
    with pytest.raises(StorageError):
        cache.publish(first)
    saved: Future[int] = Future()
    published = cache.publish_when_done(second, saved)
    saved.set_result(SIZE)
    with pytest.raises(StorageError):
        published.result(30)
    assert not first.exists()
    assert not second.exists()


def test_a_folder_is_published_after_it_was_written(cache: FolderCache, tmp_path: Path) -> None:
    path, saved = written(tmp_path, "a"), Future[int]()
    published = cache.publish_when_done(path, saved)
    assert not cache.depot.exists("snapshots", "a")
    saved.set_result(SIZE)
    assert published.result(30) == SIZE
    assert cache.depot.exists("snapshots", "a")
    assert set(cache.signed_urls(path, 60)) == {"weights"}
    cache.close()


def test_folders_from_before_the_depot_stay_if_it_does_not_take_them(
    cache: FolderCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("It does not answer.", code="depot-failed")

    path = written(tmp_path, "only-copy")
    monkeypatch.setattr(cache.depot, "put", fail)
    with pytest.raises(StorageError):
        cache.take_up([path])
    verify_folder(path)
