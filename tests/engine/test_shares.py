"""Engines that divide a machine: each takes its part of the threads and of the memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinkex.engine import base_model
from tinkex.engine.machine_memory import available_bytes, own_bytes
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess

GIB = 2**30


@pytest.mark.parametrize(("num_threads", "num_engines", "expected"), [(5, 2, 2), (2, 4, 1)])
def test_threads_are_divided_and_no_engine_is_without_one(
    tiny: Path, num_threads: int, num_engines: int, expected: int
) -> None:
    options = EngineOptions(
        models={"tiny": str(tiny)}, num_threads=num_threads, num_engines=num_engines
    )
    with EngineProcess(options) as engine:
        assert engine.fingerprint().num_threads == expected


def test_memory_is_divided_and_the_part_does_not_shrink_with_what_others_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = EngineOptions(models={}, num_engines=4, machine_bytes=8 * GIB)
    monkeypatch.setattr(base_model, "own_bytes", lambda: GIB // 2)
    for free in (8 * GIB, GIB):
        monkeypatch.setattr(base_model, "available_bytes", lambda free=free: free)
        assert base_model._free_bytes(options) == 2 * GIB - GIB // 2


def test_an_engine_alone_plans_with_all_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_model, "available_bytes", lambda: 3 * GIB)
    assert base_model._free_bytes(EngineOptions(models={})) == 3 * GIB


def test_what_a_process_takes_for_itself_is_seen() -> None:
    before = own_bytes()
    taken = bytearray(64 * 2**20)
    taken[:: 2**12] = b"x" * len(taken[:: 2**12])
    assert before + 32 * 2**20 < own_bytes() < available_bytes() + own_bytes()
