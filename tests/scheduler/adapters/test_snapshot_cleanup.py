"""What a snapshot covers leaves the disk, a little at a time, and what a crash left goes later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from tests.store.work import add_model, new_operation
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.snapshot_cleanup import SnapshotCleanup
from tinkex.store import Database, operation_outcomes, operations
from tinkex.store.operation_outcomes import OperationOutcome
from tinkex.store.results import Result

DONE = Result(encoding="json", body=b"{}")


class Scene:
    """A run with finished operations, and sweepers that come one after the other."""

    def __init__(self, folder: Path) -> None:
        self.db = Database(f"sqlite:///{folder / 'store.db'}")
        self.folders = DataFolders(folder)
        self.model = self.db.write(add_model)

    def log(self, first: int, last: int) -> None:
        """Appends operations and finishes them."""
        appended = [
            self.db.write(operations.append, new_operation(self.model, number)).operation
            for number in range(first, last + 1)
        ]
        self.db.write(
            operation_outcomes.finish,
            [OperationOutcome(operation=op, result=DONE) for op in appended],
        )

    def sweep(self, up_to: int, *old_folders: str) -> None:
        """As a server does from its start to its end."""
        sweeper = SnapshotCleanup(self.db, self.folders)
        is_swept = threading.Event()
        sweeper.start(self.model, up_to, list(old_folders))
        sweeper._background.start(is_swept.set)
        assert is_swept.wait(20)
        sweeper.close()

    def with_body(self) -> list[int]:
        """The numbers that still have a body."""
        todo = self.db.read(operations.to_replay, self.model, -1)
        kept = self.db.read(operations.bodies, [op.request_id for op in todo])
        return [op.seq_id for op in todo if op.request_id in kept]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.db.close()


def test_bodies_and_folders_go_that_a_snapshot_covers(scene: Scene) -> None:
    scene.log(1, 170)
    old, other = (scene.folders.snapshot(scene.folders.new_id()) for _ in range(2))
    for each in (old, other):
        each.mkdir(parents=True)
    scene.sweep(160, old.name)
    assert scene.with_body() == list(range(161, 171))
    assert (old.exists(), other.exists()) == (False, True)


def test_no_write_takes_all_bodies_at_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.log(1, 170)
    left: list[int] = []
    real = operations.drop_bodies

    def drop_bodies(conn: Connection, model_id: str, after: int, up_to: int) -> int:
        passed = real(conn, model_id, after, up_to)
        left.append(up_to - passed)
        return passed

    monkeypatch.setattr(operations, "drop_bodies", drop_bodies)
    scene.sweep(170)
    assert left == [120, 70, 20, 0]


def test_what_a_crash_left_goes_with_the_next_snapshot(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.log(1, 100)
    real, calls = operations.drop_bodies, 0

    def drop_bodies(conn: Connection, model_id: str, after: int, up_to: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("the process is gone")
        return real(conn, model_id, after, up_to)

    monkeypatch.setattr(operations, "drop_bodies", drop_bodies)
    scene.sweep(100)
    assert scene.with_body() == list(range(51, 101))
    scene.log(101, 120)
    scene.sweep(110)
    assert scene.with_body() == list(range(111, 121))


def test_the_end_of_a_server_does_not_wait_for_bodies(scene: Scene) -> None:
    scene.log(1, 60)
    old = scene.folders.snapshot(scene.folders.new_id())
    old.mkdir(parents=True)
    sweeper = SnapshotCleanup(scene.db, scene.folders)
    gate = threading.Event()
    sweeper._background.start(lambda: gate.wait(20))
    sweeper.start(scene.model, 60, [old.name])
    closing = threading.Thread(target=sweeper.close)
    closing.start()
    while not sweeper._is_closing:
        pass
    gate.set()
    closing.join(20)
    assert not old.exists()
    assert scene.with_body() == list(range(1, 61))
