"""Threads sleep while others want the cores, and spin again once none has for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinkex.engine.native import openmp_spin
from tinkex.engine.native.openmp_spin import SpinGovernor


@pytest.fixture
def governor() -> Iterator[SpinGovernor]:
    governor = SpinGovernor()
    yield governor
    governor.note(10.0, 0.0)


def sleepers() -> int:
    return sum(thread.name == "sleeper" for thread in threading.enumerate())


def test_a_queue_for_the_cores_puts_threads_to_sleep(governor: SpinGovernor) -> None:
    before = sleepers()
    governor.note(0.1, 0.0)
    assert not governor.is_crowded
    governor.note(0.1, 0.03)
    governor.note(0.1, 0.03)
    assert governor.is_crowded
    assert sleepers() == before + 1, "one thread is enough, however long it stays crowded"


def test_threads_spin_again_only_after_a_quiet_while(governor: SpinGovernor) -> None:
    before = sleepers()
    governor.note(0.1, 0.05)
    governor.note(0.3, 0.0)
    governor.note(0.1, 0.05)  # the quiet before this one counts for nothing
    governor.note(0.3, 0.0)
    assert governor.is_crowded
    governor.note(0.3, 0.0)
    assert not governor.is_crowded
    assert sleepers() == before


def test_looks_follow_the_thread_that_computes(
    governor: SpinGovernor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another thread has a clock of its own: what it queued is no news of this one."""
    stat = tmp_path / "schedstat"
    monkeypatch.setattr(openmp_spin, "_SCHEDSTAT", stat)
    monkeypatch.setattr(openmp_spin, "_WINDOW_S", 0.0)
    stat.write_text("0 0 0")
    governor.look()
    stat.write_text("0 9000000000000 0")
    thread = threading.Thread(target=governor.look)
    thread.start()
    thread.join()
    assert not governor.is_crowded
    governor.look()
    stat.write_text("0 99000000000000 0")
    governor.look()
    assert governor.is_crowded
