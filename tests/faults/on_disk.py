"""A scheduler whose null engine has a disk that can be bad, slow, or held up by the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.work import Bench
from tinkex.engine.interface import Engine, StateScope
from tinkex.engine.null import NullEngine
from tinkex.files.errors import StorageError
from tinkex.scheduler import SchedulerConfig
from tinkex.scheduler.adapters import snapshots

DELAY_S = 0.01
LIMIT_S = 0.2


class Disk:
    """A null engine whose disk can be bad or slow."""

    def __init__(self) -> None:
        self.is_bad = False
        self.takes_part = threading.Event()
        self.takes_part.set()
        self.saving_s = 0.0
        self.saves = 0
        self.engines = 0
        self.engine_in_use: Any = None

    def save(self) -> None:
        self.saves += 1
        if self.is_bad:
            raise StorageError("The disk is full.", code="disk-full")
        time.sleep(self.saving_s)
        assert self.takes_part.wait(20)

    def engine(self, delay_s: float = DELAY_S) -> Callable[[], Engine]:
        disk = self

        class OnDisk(NullEngine):
            def save_adapter(
                self, adapter_id: str, folder: Path, scope: StateScope = "weights"
            ) -> int:
                disk.save()
                return super().save_adapter(adapter_id, folder, scope)

            def start_saving(self, adapter_id: str, folder: Path, scope: StateScope) -> Future[int]:
                write = self._written(adapter_id, folder, scope)

                def save() -> int:
                    disk.save()
                    return write()

                return self._background.start(save)

        def start() -> Engine:
            disk.engines += 1
            disk.engine_in_use = OnDisk(delay_s=delay_s)
            return disk.engine_in_use

        return start


Make = Callable[..., Bench]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(snapshots, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(snapshots, "_LONGEST_PAUSE_S", 0.05)
    return Disk()


@pytest.fixture
def bench(tmp_path: Path, disk: Disk) -> Iterator[Make]:
    made: list[Bench] = []

    def make(delay_s: float = DELAY_S, **config: Any) -> Bench:
        settings = {"snapshot_after_s": LIMIT_S, **config}
        made.append(Bench(tmp_path, disk.engine(delay_s), SchedulerConfig(**settings)))
        return made[-1].start()

    yield make
    for each in made:
        each.close()


def scores(work: Bench, session: str, seq_id: int) -> bytes:
    return work.result(work.sample(session, seq_id)).body
