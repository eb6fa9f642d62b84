"""Files on a bad disk: every failing call leaves a folder whole or absent, and damage is named."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.disks import small_disk
from tinkex.files import atomic_folder
from tinkex.files.atomic_folder import MANIFEST, payload_files, verify_folder, write_folder
from tinkex.files.errors import StorageError

OLD = {"one": b"old one", "two": b"old two"}
NEW = {"one": b"new one, longer", "two": b"new two", "three": b"x" * 5000}


class FailingCalls:
    """Fails the n-th of the system calls that folders are written with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
        self.left = -1
        self.seen = 0
        self._error = error
        monkeypatch.setattr(os, "fsync", self._wrap(os.fsync))
        for name in ("mkdir", "rename", "open"):
            monkeypatch.setattr(Path, name, self._wrap(getattr(Path, name)))

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.seen += 1
            if self.left == 0:
                self.left = -1
                raise OSError(self._error, os.strerror(self._error))
            self.left -= 1 if self.left > 0 else 0
            return call(*args, **kwargs)

        return wrapped


def content(folder: Path) -> dict[str, bytes] | None:
    if not folder.exists():
        return None
    verify_folder(folder)
    return {path.name: path.read_bytes() for path in payload_files(folder)}


def attempt(folder: Path) -> StorageError | None:
    try:
        write_folder(folder, NEW)
    except StorageError as failure:
        return failure
    return None


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("is_there", [False, True])
def test_whichever_call_fails_the_folder_is_whole_or_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, is_there: bool
) -> None:
    calls = FailingCalls(monkeypatch, error)
    write_folder(tmp_path / "rehearsal", NEW)
    num_calls, failures = calls.seen, 0
    assert num_calls > 10
    for nth in range(num_calls + 5):
        place = tmp_path / f"n{nth}"
        folder = place / "folder"
        if is_there:
            write_folder(folder, OLD)
        calls.left = nth
        failure = attempt(folder)
        calls.left = -1
        if failure is None:
            assert content(folder) == NEW
        else:
            failures += 1
            assert failure.code in {"disk-full", "disk-failed", "disk-read-only"}
            assert content(folder) == (OLD if is_there else None)
        left = list(place.iterdir()) if place.exists() else []
        assert [path.name for path in left] in ([], ["folder"]), "nothing lies about"
        write_folder(folder, NEW)
        assert content(folder) == NEW, "and it can be written once the disk is well"
    assert failures >= num_calls - 1


def test_a_disk_that_is_really_full_leaves_nothing_half(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_mb=2) as disk:
        folder = disk.path / "folder"
        disk.fill(leave_bytes=100_000)
        with pytest.raises(StorageError, match="is full") as failure:
            write_folder(folder, {"big": b"x" * 500_000})
        assert failure.value.code == "disk-full"
        assert [path.name for path in disk.path.iterdir()] == ["ballast"]
        disk.relieve()
        write_folder(folder, {"big": b"x" * 500_000})
        verify_folder(folder)


def flip(path: Path, at: int = -1) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


DAMAGE: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "a flipped bit": ("three", lambda folder, _: flip(folder / "three")),
    "a cut file": ("three", lambda folder, _: os.truncate(folder / "three", 4999)),
    "a longer file": ("two", lambda folder, _: (folder / "two").write_bytes(b"new two!")),
    "a lost file": ("one", lambda folder, _: (folder / "one").unlink()),
    "a file of another folder": (
        "two",
        lambda folder, other: (other / "two").replace(folder / "two"),
    ),
    "two files exchanged": ("one", lambda folder, _: _exchange(folder / "one", folder / "two")),
    "a flipped bit in the list": (MANIFEST, lambda folder, _: flip(folder / MANIFEST, 40)),
    "a list cut short": (MANIFEST, lambda folder, _: os.truncate(folder / MANIFEST, 50)),
}


def _exchange(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_found_and_the_file_named(tmp_path: Path, how: str) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    write_folder(folder, NEW)
    write_folder(other, {**NEW, "two": b"two new"})
    verify_folder(folder)
    name, damage = DAMAGE[how]
    damage(folder, other)
    with pytest.raises(StorageError) as failure:
        verify_folder(folder)
    assert failure.value.code == "files-damaged"
    assert repr(name) in failure.value.message


def test_every_flipped_bit_of_a_small_folder_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_folder(folder, {"one": b"weights"})
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        for at in range(len(whole)):
            flip(path, at)
            if path.name == MANIFEST and whole[at : at + 1].isspace():
                path.write_bytes(whole)
                continue
            with pytest.raises(StorageError):
                verify_folder(folder)
            path.write_bytes(whole)
    verify_folder(folder)


def test_a_folder_made_elsewhere_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    verify_folder(tmp_path)
    assert atomic_folder.manifest_digest(tmp_path) is None
