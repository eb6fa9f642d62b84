"""Workers on one machine have folders of their own, and begin with an empty one."""

from __future__ import annotations

from pathlib import Path

from tinkex.engine.remote.cache_dir import own_cache_dir


def test_two_workers_have_two_folders_and_a_later_one_begins_empty(tmp_path: Path) -> None:
    with own_cache_dir(tmp_path) as first:
        first.mkdir()
        (first / "copy").touch()
        with own_cache_dir(tmp_path) as second:
            assert second != first
    with own_cache_dir(tmp_path) as again:
        assert again == first
        assert not again.exists()
