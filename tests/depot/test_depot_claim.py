"""A shared folder belongs to one database, also when several servers start for the first time."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tinkex.files.depot_claim import CLAIM, claim_folder, claimed_by

SERVERS = 8


def claims_at_once(root: Path) -> list[str]:
    root.mkdir()
    start = threading.Barrier(SERVERS)

    def claim(number: int) -> str:
        start.wait()
        return claim_folder(root, f"database {number}")

    with ThreadPoolExecutor(SERVERS) as pool:
        return list(pool.map(claim, range(SERVERS)))


def test_of_servers_that_start_at_once_exactly_one_claims_the_folder(tmp_path: Path) -> None:
    for number in range(50):
        root = tmp_path / str(number)
        assert set(claims_at_once(root)) == {claimed_by(root)}
        assert [path.name for path in root.iterdir()] == [CLAIM]


def test_a_claim_stays(tmp_path: Path) -> None:
    assert claim_folder(tmp_path, "first") == "first"
    assert claim_folder(tmp_path, "first") == "first"
    assert claim_folder(tmp_path, "second") == "first"


def test_a_file_system_without_hard_links_has_one_claim_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(target))

    monkeypatch.setattr(os, "link", refuse)
    assert claim_folder(tmp_path, "first") == "first"
    assert claim_folder(tmp_path, "second") == "first"
    assert [path.name for path in tmp_path.iterdir()] == [CLAIM]


def test_a_folder_that_is_not_there_cannot_be_claimed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        claim_folder(tmp_path / "missing", "first")
