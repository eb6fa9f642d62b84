"""A start removes folders that no row names, and nothing that came after it looked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.work import Bench
from tinkex.engine.null import NullEngine
from tinkex.store import samplers

KINDS = ("checkpoints", "snapshots", "samplers")


def test_folders_of_another_server_that_led_meanwhile_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, NullEngine)
    write = bench.db.write

    def write_late(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As if this process had been stopped here while another one led."""
        if run is samplers.free_of_ended_sessions:
            for kind in KINDS:
                (tmp_path / kind / ("b" * 32)).mkdir()
        return write(run, *args, **kwargs)

    monkeypatch.setattr(bench.db, "write", write_late)
    for kind in KINDS:
        (tmp_path / kind / ("a" * 32)).mkdir()
    bench.start()
    bench.close()
    for kind in KINDS:
        assert [each.name for each in (tmp_path / kind).iterdir()] == ["b" * 32]
