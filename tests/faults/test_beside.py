"""Files written beside the work: whatever happens meanwhile, every state and answer is right."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import update

from tests.faults.on_disk import Disk, Make, scores
from tests.scheduler.work import Bench
from tests.support.waiting import wait_until
from tinkex.files.file_thread import FileThread
from tinkex.scheduler.adapters.engine_adapters import EngineAdapters
from tinkex.scheduler.adapters.recovery import Recovery
from tinkex.store import Database, StoreError, models, operations
from tinkex.store.schema import models as model_rows


def adapters_of(work: Bench) -> EngineAdapters:
    return work.scheduler._slots[0].adapters


def has_failed_sampler(work: Bench) -> bool:
    return any(each.written.done() for each in adapters_of(work).sampler_writer.pending)


def hold_up_a_snapshot(work: Bench, disk: Disk, model: str, after: int) -> None:
    """Trains until a snapshot of the model is under way, which the disk does not take yet."""
    disk.takes_part.clear()
    for number in range(1, after + 1):
        work.result(work.train(model, number))
    wait_until(lambda: adapters_of(work).snapshot_writer.is_pending)


class Big:
    """Stands for the copy of an adapter."""


def test_what_was_written_is_let_go_of() -> None:
    background = FileThread("test")
    big = Big()
    seen = weakref.ref(big)
    background.start(lambda held=big: None).result(5)
    del big
    time.sleep(0.2)
    gc.collect()
    try:
        assert seen() is None, "the thread still holds the last thing it wrote"
    finally:
        background.close()


def test_how_long_a_snapshot_took_that_was_waited_for(bench: Make, disk: Disk) -> None:
    work = bench(snapshot_after_s=60, adapter_idle_s=1000)
    model = work.model()
    work.result(work.train(model, 1))
    disk.saving_s = 0.3
    held = adapters_of(work).cache[model]
    work.scheduler._slots[0].driver._deferred.append(
        lambda: adapters_of(work).snapshots.snapshot(model)
    )
    wait_until(lambda: held.dirty_operations == 0)
    assert held.saving_s >= 0.3


def test_a_run_that_ends_while_its_snapshot_is_written_affects_no_other(
    bench: Make,
    disk: Disk,
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = bench(snapshot_after_s=60, snapshot_after_operations=2, adapter_idle_s=1000)
    model = work.model()
    hold_up_a_snapshot(work, disk, model, after=2)
    end = update(model_rows).where(model_rows.c.model_id == model).values(state="ended")
    work.db.write(lambda conn: conn.execute(end) and None)
    work.scheduler._slots[0].driver.free(sampler_ids=[], model_ids=[model])
    time.sleep(0.3)
    disk.takes_part.set()
    wait_until(lambda: model not in adapters_of(work).cache)
    time.sleep(0.3)
    assert "Unexpected error in engine slot" not in caplog.text


def test_a_replay_does_not_race_with_the_row_of_a_snapshot(
    bench: Make,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S is written, its row is on its way; a sampler after it failed, and its sample is asked for:
    the replay reads the log before the row is there and the bodies after it."""
    real, gate, is_late = models.record_snapshot, threading.Event(), threading.Event()

    work = bench(snapshot_after_s=60, snapshot_after_operations=3, adapter_idle_s=1000)
    model = work.model()
    hold_up_a_snapshot(work, disk, model, after=3)

    submit = Database.submit

    def late(self: Database, run: Any, *args: Any, **kwargs: Any) -> Any:
        if run is not real or is_late.is_set():
            return submit(self, run, *args, **kwargs)
        is_late.set()
        row: Future[Any] = Future()

        def commit() -> None:
            gate.wait(20)
            row.set_result(submit(self, run, *args, **kwargs).result())

        threading.Thread(target=commit, daemon=True).start()
        return row

    monkeypatch.setattr(Database, "submit", late)
    session = work.answer(work.save_ephemeral(model, 4))["sampling_session_id"]
    before = scores(work, session, 0)
    disk.is_bad = True  # for the sampler: the snapshot before it has asked already
    disk.takes_part.set()
    wait_until(is_late.is_set)
    wait_until(lambda: has_failed_sampler(work))
    disk.is_bad = False

    reads = Recovery._replay

    def replay(self: Recovery, operation: Any) -> None:
        gate.set()  # a commit that took its time
        time.sleep(0.3)
        reads(self, operation)

    monkeypatch.setattr(Recovery, "_replay", replay)
    threading.Timer(3, gate.set).start()  # where the replay waits for the row first
    work.scheduler._slots[0].driver.free(sampler_ids=[session], model_ids=[])
    time.sleep(0.3)
    assert scores(work, session, 1) == before
    assert disk.engines == 1, "an engine was thrown away: " + caplog.text[-2000:]


def test_a_rebuild_that_fails_half_way_leaves_no_state(
    bench: Make,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sampler's file is lacking, and the store fails between the load and the replay."""
    work = bench(snapshot_after_s=60, adapter_idle_s=1000)
    model, reference = work.model(), work.model()
    for each in (model, reference):
        work.result(work.train(each, 1))
        work.result(work.step(each, 2))
        work.result(work.train(each, 3))
    disk.is_bad = True
    work.result(work.save_ephemeral(model, 4))
    wait_until(lambda: has_failed_sampler(work))
    disk.is_bad = False
    read, left = Database.read, [1]

    def bad(self: Database, run: Any, *args: Any, **kwargs: Any) -> Any:
        if run is operations.to_replay and left:
            left.pop()
            raise StoreError("The disk failed.")
        return read(self, run, *args, **kwargs)

    monkeypatch.setattr(Database, "read", bad)
    work.scheduler._slots[0].driver.free(sampler_ids=[], model_ids=[model])
    wait_until(lambda: not left)
    time.sleep(0.2)
    got = work.answer(work.step(model, 5))
    assert got == work.answer(work.step(reference, 4))


def test_a_sampler_on_its_way_to_the_disk_outlives_its_model(
    bench: Make,
    disk: Disk,
) -> None:
    """unload_model while the sampler's file is written, and the sampler leaves memory."""
    work = bench(snapshot_after_s=60, adapter_idle_s=1000)
    model = work.model()
    work.result(work.train(model, 1))
    disk.takes_part.clear()
    session = work.answer(work.save_ephemeral(model, 2))["sampling_session_id"]
    before = scores(work, session, 0)
    work.db.write(models.set_state, model, "unloaded")
    work.scheduler._slots[0].driver.forget([model])
    work.scheduler._slots[0].driver.free(sampler_ids=[session], model_ids=[])
    time.sleep(0.3)
    request = work.sample(session, 1)
    threading.Timer(0.5, disk.takes_part.set).start()
    assert work.result(request).body == before


def test_the_end_takes_no_snapshot_twice(bench: Make, disk: Disk) -> None:
    work = bench(snapshot_after_s=60, snapshot_after_operations=2, adapter_idle_s=1000)
    model = work.model()
    hold_up_a_snapshot(work, disk, model, after=2)
    threading.Timer(0.5, disk.takes_part.set).start()
    work.scheduler.stop()
    assert disk.saves == 1
