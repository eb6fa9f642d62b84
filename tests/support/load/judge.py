"""Whether a server did everything it promised once, in order, and rightly.

Every operation is done again on a null engine in this process, whose numbers are hashes of all
that was applied before; and the server's log is read.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from tests.support.load import work
from tinkex.engine.interface import LoraSpec, OptimResult, TrainResult
from tinkex.engine.null import NullEngine
from tinkex.scheduler import convert
from tinkex.wire import json, protobuf

_ADAPTER = "a"


def mistakes(records: work.Records, database: Path) -> list[str]:
    """What is wrong; empty if nothing is."""
    with closing(sqlite3.connect(database)) as db:
        found = [*_log_mistakes(records, db), *_sample_mistakes(records, db)]
        specs = dict(db.execute("SELECT model_id, spec FROM models").fetchall())
    for model_id, kept in records.models.items():
        found += _replay_mistakes(model_id, specs[model_id], kept)
    expected = [_sample_checksum(variant) for variant in range(work.VARIANTS)]
    for session_id, kept in records.samples.items():
        found += [
            f"sample {seq_id} of {session_id} differs"
            for seq_id, record in kept.items()
            if record.checksum != expected[record.variant]
        ]
    return found


def _log_mistakes(records: work.Records, db: sqlite3.Connection) -> Iterator[str]:
    query = (
        "SELECT seq_id, request_id, state, (SELECT COUNT(*) FROM results WHERE "
        "results.request_id = operations.request_id) FROM operations WHERE model_id = ? "
        "ORDER BY seq_id"
    )
    for model_id, kept in records.models.items():
        rows = db.execute(query, (model_id,)).fetchall()
        if [row[0] for row in rows] != list(range(len(kept) + 1)):
            yield f"{model_id}: the log has {len(rows)} numbers, the client {len(kept)} and one"
        if {(row[2], row[3]) for row in rows} != {("done", 1)}:
            yield f"{model_id}: not every operation is done and has one result"
        ids = {row[0]: row[1] for row in rows}
        yield from (
            f"{model_id}: number {seq_id} was promised as {record.request_id}"
            for seq_id, record in kept.items()
            if ids.get(seq_id) != record.request_id
        )


def _sample_mistakes(records: work.Records, db: sqlite3.Connection) -> Iterator[str]:
    rows = db.execute("SELECT sampling_session_id, seq_id, request_id, state FROM samples")
    logged = {(row[0], row[1]): (row[2], row[3]) for row in rows.fetchall()}
    promised = {
        (session_id, seq_id): (record.request_id, "done")
        for session_id, kept in records.samples.items()
        for seq_id, record in kept.items()
    }
    if logged != promised:
        yield f"{len(logged.items() ^ promised.items())} samples differ between log and client"


def _replay_mistakes(model_id: str, spec: str, kept: dict[int, work.Record]) -> Iterator[str]:
    engine = NullEngine((work.BASE_MODEL,))
    engine.create_adapter(_ADAPTER, work.BASE_MODEL, msgspec.json.decode(spec, type=LoraSpec))
    trains = [
        convert.train_request(work.training_request(_ADAPTER, variant))
        for variant in range(work.VARIANTS)
    ]
    steps = [
        convert.optim_request(_ADAPTER, work.step_request(_ADAPTER, variant).params)
        for variant in range(work.VARIANTS)
    ]
    for seq_id, record in sorted(kept.items()):
        body: Any
        if record.kind == "pass":
            (trained,) = engine.forward_backward([trains[record.variant]])
            assert isinstance(trained, TrainResult)
            body = protobuf.encode_forward_backward_output(convert.train_output(trained))
        else:
            (stepped,) = engine.optim_step([steps[record.variant]])
            assert isinstance(stepped, OptimResult)
            body = json.encode({"metrics": stepped.metrics, "type": "optim_step"})
        if zlib.crc32(body) != record.checksum:
            yield f"{model_id}: number {seq_id} gave something else than in order and once"
            return


def _sample_checksum(variant: int) -> int:
    engine = NullEngine((work.BASE_MODEL,))
    request = work.sample_request(variant)
    engine.submit_sample(
        convert.sample_request(
            request, request_id="any", model=work.BASE_MODEL, sampler_id=None, owner="any"
        )
    )
    (result,) = engine.step_sampling().finished
    return zlib.crc32(protobuf.encode_sample_response(convert.sample_response(result, request)))
