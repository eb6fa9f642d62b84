"""A crash after every single commit: whatever was on disk then, the run ends with the same numbers.

The data folder is copied right after each commit, as a `kill -9` at that instant would leave it,
and each copy is started and finished.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.work import Bench
from tinkex.engine.null import NullEngine
from tinkex.scheduler import SchedulerConfig
from tinkex.store import Database
from tinkex.wire import protobuf

CONFIG = SchedulerConfig(snapshot_after_operations=3)
Script = list[tuple[str, Callable[[Bench, str], str]]]

SCRIPT: Script = [
    ("train 1", lambda bench, model: bench.train(model, 1)),
    ("step 2", lambda bench, model: bench.step(model, 2)),
    ("train 3", lambda bench, model: bench.train(model, 3)),
    ("snapshot 4", lambda bench, model: bench.save_ephemeral(model, 4)),
    ("train 5", lambda bench, model: bench.train(model, 5)),
    ("step 6", lambda bench, model: bench.step(model, 6)),
    ("save 7", lambda bench, model: bench.save(model, 7)),
    ("load 8", lambda bench, model: bench.load(model, 8, f"tinker://{model}/weights/ckpt")),
    ("train 9", lambda bench, model: bench.train(model, 9)),
    ("step 10", lambda bench, model: bench.step(model, 10)),
]


def play(bench: Bench, model: str) -> dict[str, Any]:
    """All results of the script; what was submitted before is submitted again, as clients do."""
    seen: dict[str, Any] = {}
    for name, submit in SCRIPT:
        result = bench.result(submit(bench, model))
        seen[name] = (
            protobuf.decode_forward_backward_output(result.body).metrics
            if result.encoding == "proto"
            else bench.answer(submit(bench, model))
        )
    session = seen["snapshot 4"]["sampling_session_id"]
    sample = bench.result(bench.sample(session, 0))
    seen["scores"] = protobuf.decode_sample_response(sample.body).prompt_logprobs_raw
    return seen


def copied(origin: Path, target: Path) -> Path:
    """The target, now as the origin is; tried again if a file vanishes while it is being copied."""
    for _ in range(50):
        try:
            return shutil.copytree(origin, target)
        except (shutil.Error, FileNotFoundError):
            shutil.rmtree(target, ignore_errors=True)
    raise AssertionError("the folder never held still")


def snapshots_ahead(folder: Path) -> list[str]:
    """The models whose snapshot has seen an operation that is not finished."""
    query = (
        "select m.model_id from models m join operations o on o.model_id = m.model_id "
        "where o.state = 'queued' and m.snapshot_seq >= o.seq_id"
    )
    connection = sqlite3.connect(folder / "bench.db")
    try:
        return [row[0] for row in connection.execute(query)]
    finally:
        connection.close()


def test_a_crash_after_any_commit_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    copies: list[Path] = []
    commit = Database._commit

    def commit_and_copy(self: Database, jobs: list[Any]) -> None:
        futures = [job.future for job in jobs]
        for job in jobs:  # no caller sees the commit before the copy is made
            job.future = type(job.future)()
        commit(self, jobs)
        copies.append(copied(origin, tmp_path / f"crash-{len(copies)}"))
        for job, future in zip(jobs, futures, strict=True):
            error = job.future.exception()
            future.set_exception(error) if error else future.set_result(job.future.result())

    bench = Bench(origin, NullEngine, CONFIG)
    model = bench.model()
    monkeypatch.setattr(Database, "_commit", commit_and_copy)
    bench.start()
    expected = play(bench, model)
    monkeypatch.undo()
    bench.close()
    assert len(copies) > 15
    for copy in copies:
        assert not snapshots_ahead(copy), f"{copy.name}: a snapshot holds what has not ended"
        again = Bench(copy, NullEngine, CONFIG).start()
        assert play(again, model) == expected, copy.name
        again.close()
