"""A crash repeats a bounded amount of work, whatever the load; a bad disk only postpones that."""

from __future__ import annotations

import time

import pytest

from tests.faults.on_disk import DELAY_S, LIMIT_S, Disk, Make, scores
from tests.scheduler.work import Bench
from tests.support.soak import amount
from tests.support.waiting import wait_until
from tinkex.scheduler.adapters import snapshots
from tinkex.store import models, operations


def to_repeat(work: Bench, model_ids: list[str]) -> int:
    """How many operations a crash right now would have to repeat, over all models."""
    total = 0
    for model_id in model_ids:
        model = work.db.read(models.get_any, model_id)
        assert model is not None
        total += len(work.db.read(operations.to_replay, model_id, model.snapshot_seq or 0))
    return total


def drive(work: Bench, model_ids: list[str], steps: int) -> int:
    """Trains all models at once; the most operations that a crash would ever have repeated."""
    most = 0
    for step in range(steps):
        waiting = [work.train(each, 2 * step + 1) for each in model_ids]
        waiting += [work.step(each, 2 * step + 2) for each in model_ids]
        for request_id in waiting:
            work.result(request_id)
            most = max(most, to_repeat(work, model_ids))
    return most


def test_many_models_together_repeat_no_more_than_one_would(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_SAVING_FACTOR", 0.0)
    work = bench(max_batch_operations=1)
    model_ids = [work.model() for _ in range(8)]
    most = drive(work, model_ids, amount(10, 60))
    # Each takes at least the delay; beside the limit there is the one that was just finished.
    assert most * DELAY_S <= LIMIT_S + 2 * DELAY_S


def test_sampling_in_between_postpones_no_snapshot(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_SAVING_FACTOR", 0.0)
    work = bench(max_batch_operations=1)
    session = work.base_sampler()
    for number in range(200):
        work.sample(session, number)
    model_ids = [work.model() for _ in range(3)]
    assert drive(work, model_ids, amount(15, 60)) * DELAY_S <= LIMIT_S + 2 * DELAY_S


def test_one_long_operation_is_covered_as_soon_as_it_ends(bench: Make, disk: Disk) -> None:
    work = bench(delay_s=2 * LIMIT_S)
    model = work.model()
    work.result(work.train(model, 1))
    work.result(work.forward(model, 2))  # its turn comes after the snapshot
    assert to_repeat(work, [model]) == 0
    assert disk.saves == 1


def test_work_goes_on_while_a_snapshot_is_written(bench: Make, disk: Disk) -> None:
    work = bench(snapshot_after_s=60, snapshot_after_operations=4)
    models_due = [work.model() for _ in range(3)]
    disk.takes_part.clear()
    for number in range(1, 7):
        for request_id in [work.train(each, number) for each in models_due]:
            work.result(request_id)
    assert disk.saves == 1, "one at a time"
    assert to_repeat(work, models_due) == 18, "none is kept yet"
    disk.takes_part.set()
    wait_until(lambda: to_repeat(work, models_due) < 3)
    assert disk.saves == 3


def test_a_snapshot_covers_what_was_done_when_it_began(bench: Make, disk: Disk) -> None:
    work = bench(snapshot_after_s=60, snapshot_after_operations=4)
    model, reference = work.model(), work.model()
    disk.takes_part.clear()
    for number in range(1, 7):
        work.result(work.train(model, number))
    disk.takes_part.set()
    wait_until(lambda: to_repeat(work, [model]) < 6)
    assert to_repeat(work, [model]) == 2
    disk.engine_in_use.is_gone = True
    for number in range(1, 7):
        work.result(work.train(reference, number))
    assert work.answer(work.step(model, 7)) == work.answer(work.step(reference, 7))
    assert disk.engines == 2


def test_work_waits_for_a_snapshot_that_is_late(bench: Make, disk: Disk) -> None:
    work = bench(snapshot_after_s=60, snapshot_after_operations=4)
    model = work.model()
    disk.takes_part.clear()
    for number in range(1, 9):
        work.result(work.train(model, number))
    ninth = work.train(model, 9)
    time.sleep(0.3)
    assert to_repeat(work, [model]) == 8, "the ninth has not run"
    disk.takes_part.set()
    work.result(ninth)
    assert to_repeat(work, [model]) <= 5


def test_snapshots_still_due_when_the_work_ends_are_taken_then(bench: Make, disk: Disk) -> None:
    work = bench(max_batch_operations=4, snapshot_after_s=60, snapshot_after_operations=4)
    model_ids = [work.model() for _ in range(4)]
    for request_id in [work.train(each, n) for n in range(1, 5) for each in model_ids]:
        work.result(request_id)
    wait_until(lambda: to_repeat(work, model_ids) == 0)
    assert disk.saves == 4


def test_snapshots_leave_time_for_work_where_saving_is_slow(bench: Make, disk: Disk) -> None:
    disk.saving_s = 0.1
    work = bench(max_batch_operations=1, snapshot_after_s=0.02)
    model_ids = [work.model() for _ in range(4)]
    drive(work, model_ids, 15)  # 120 operations: without a bound there would be 60 snapshots
    assert disk.saves <= 30


def test_a_disk_that_stays_bad_is_tried_less_and_less_often(
    bench: Make, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_LONGEST_PAUSE_S", 60.0)
    monkeypatch.setattr(snapshots, "_LATE", 1000)
    work = bench(snapshot_after_operations=1, snapshot_after_s=60)
    model = work.model()
    disk.is_bad = True
    until, number = time.monotonic() + 1.5, 0
    while time.monotonic() < until:
        number += 1
        work.result(work.train(model, number))
    # The first pause is 0.05 s and each one twice the last; the same again and again would be 25.
    assert 2 <= disk.saves <= 7


def test_work_goes_on_while_no_snapshot_can_be_written(bench: Make, disk: Disk) -> None:
    work = bench(snapshot_after_operations=4)
    model, reference = work.model(), work.model()
    disk.is_bad = True
    for number in range(1, 21):
        work.result(work.train(model, number) if number % 2 else work.step(model, number))
    assert to_repeat(work, [model]) == 20
    assert disk.engines == 1, "the engine is not to blame"
    disk.is_bad = False
    time.sleep(0.1)
    work.result(work.train(model, 21))
    work.result(work.forward(model, 22))
    assert to_repeat(work, [model]) < 4, "nor is it postponed for ever"
    for number in range(1, 22):
        answer = work.train(reference, number) if number % 2 else work.step(reference, number)
        work.result(answer)
    assert work.answer(work.step(model, 23)) == work.answer(work.step(reference, 22))


def test_a_save_on_a_bad_disk_fails_alone_and_says_why(bench: Make, disk: Disk) -> None:
    work = bench()
    model = work.model()
    work.result(work.train(model, 1))
    disk.is_bad = True
    failed = work.answer(work.save(model, 2))
    assert (failed["category"], failed["code"]) == ("server", "disk-full")
    disk.is_bad = False
    saved = work.answer(work.save(model, 3))
    assert saved["path"].endswith("/weights/ckpt")
    assert disk.engines == 1
    disk.is_bad = True
    failed = work.answer(work.load(model, 4, saved["path"]))
    assert failed["code"] == "disk-full", "a load is kept by a snapshot"
    disk.is_bad = False
    reference = work.model()
    work.result(work.train(reference, 1))
    assert work.answer(work.step(model, 5)) == work.answer(work.step(reference, 2))


def test_work_goes_on_while_samplers_are_written_but_no_more_than_fit(
    bench: Make, disk: Disk
) -> None:
    work = bench()
    model = work.model()
    work.result(work.train(model, 1))
    disk.takes_part.clear()
    first = work.answer(work.save_ephemeral(model, 2))["sampling_session_id"]
    before = scores(work, first, 0)
    work.result(work.step(model, 3))
    second = work.answer(work.save_ephemeral(model, 4))["sampling_session_id"]
    assert scores(work, second, 0) != before
    third = work.save_ephemeral(model, 5)
    work.result(third)
    behind = work.train(model, 6)
    time.sleep(0.2)
    assert disk.saves == 1, "they are written one after the other"
    assert not work.is_done(behind), "and two copies are enough"
    disk.takes_part.set()
    work.result(behind)
    work.close()
    again = bench()
    assert scores(again, first, 1) == before


def test_a_sampler_the_disk_did_not_take_is_not_lost(bench: Make, disk: Disk) -> None:
    work = bench(max_samplers=2, snapshot_after_operations=5)
    model = work.model()
    work.result(work.train(model, 1))
    disk.is_bad = True
    session = work.answer(work.save_ephemeral(model, 2))["sampling_session_id"]
    before = scores(work, session, 0)
    for number in range(3, 12):
        work.result(work.train(model, number) if number % 2 else work.step(model, number))
    assert scores(work, session, 1) == before, "it is in the engine's memory"
    disk.is_bad = False
    time.sleep(0.1)
    work.result(work.train(model, 12))
    work.result(work.forward(model, 13))
    assert to_repeat(work, [model]) == 0
    for number in range(14, 18):  # others push it out of memory
        other = work.answer(work.save_ephemeral(model, number))["sampling_session_id"]
        scores(work, other, 0)
    assert scores(work, session, 2) == before
    work.close()
    again = bench()
    assert scores(again, session, 3) == before
