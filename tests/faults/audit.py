"""Looks into a data folder at rest: every promise has its result, every row its folder, and no
folder is without a row."""

from __future__ import annotations

import sqlite3
from pathlib import Path

FILES = ("null_adapter.json", "adapter_model.safetensors", "optimizer.safetensors")


def audit(data_dir: Path) -> list[str]:
    """What is wrong in the data folder of a server that was stopped and had time for its work."""
    connection = sqlite3.connect(f"file:{data_dir / 'tinkex.db'}?mode=ro", uri=True)
    try:
        found = [*_promises(connection), *_numbers(connection), *_folders(connection, data_dir)]
        (answer,) = connection.execute("pragma integrity_check").fetchone()
        return found if answer == "ok" else [*found, f"the database is damaged: {answer}"]
    finally:
        connection.close()


def compare(data_dir: Path, expected: dict[str, Path]) -> list[str]:
    """Checkpoints whose files are not, byte by byte, those of the expected folders."""
    connection = sqlite3.connect(f"file:{data_dir / 'tinkex.db'}?mode=ro", uri=True)
    try:
        rows = connection.execute("select checkpoint_id, model_id, kind, name from checkpoints")
        found = []
        for checkpoint_id, model_id, kind, name in rows:
            path = f"tinker://{model_id}/{kind}/{name}"
            folders = (data_dir / "checkpoints" / checkpoint_id, expected.get(path))
            if folders[1] is not None and len({_content(each) for each in folders}) > 1:
                found.append(f"{path} is not as it was saved")
        return found
    finally:
        connection.close()


def _content(folder: Path | None) -> tuple[bytes, ...]:
    assert folder is not None
    return tuple(path.read_bytes() for path in sorted(folder.iterdir()) if path.name in FILES)


def _promises(connection: sqlite3.Connection) -> list[str]:
    """Requests without an end, ends without a result, results without a request."""
    found = []
    for table in ("operations", "samples"):
        for row in connection.execute(f"select request_id from {table} where state = 'queued'"):
            found.append(f"{table}: {row[0]} never ended")
        query = (
            f"select request_id, state from {table} where state in ('done', 'failed') "
            "and request_id not in (select request_id from results)"
        )
        found += [
            f"{table}: {row[0]} is {row[1]} without a result" for row in connection.execute(query)
        ]
    query = (
        "select request_id from results where request_id not in "
        "(select request_id from operations union select request_id from samples)"
    )
    return found + [f"results: {row[0]} is of no request" for row in connection.execute(query)]


def _numbers(connection: sqlite3.Connection) -> list[str]:
    """Sequences with holes, and models whose counted steps are not those that were done."""
    found = []
    query = (
        "select model_id, count(*), max(seq_id) from operations where seq_id >= 0 group by model_id"
    )
    for model_id, count, last in connection.execute(query):
        if count != last + 1:
            found.append(f"{model_id}: {count} numbers up to {last}")
    query = (
        "select m.model_id, m.num_steps, count(o.request_id) from models m left join operations o "
        "on o.model_id = m.model_id and o.kind = 'optim_step' and o.state = 'done' "
        "group by m.model_id having m.num_steps != count(o.request_id)"
    )
    for model_id, steps, done in connection.execute(query):
        found.append(f"{model_id}: {steps} steps are counted, {done} were done")
    query = "select request_id from operations where state = 'skipped'"
    return found + [f"{row[0]} was passed over" for row in connection.execute(query)]


def _folders(connection: sqlite3.Connection, data_dir: Path) -> list[str]:
    """Rows without folders and folders without rows."""
    queries = {
        "checkpoints": "select checkpoint_id from checkpoints",
        "snapshots": "select snapshot_folder from models where snapshot_folder is not null",
        "samplers": (
            "select folder from sampling_sessions where folder is not null and freed_at is null"
        ),
    }
    found = []
    for kind, query in queries.items():
        known = {row[0] for row in connection.execute(query)}
        there = {path.name for path in (data_dir / kind).iterdir()}
        found += [f"{kind}/{name} has no row" for name in there - known]
        for name in known:
            files = {path.name for path in (data_dir / kind / name).glob("*")}
            if not files & set(FILES):
                found.append(f"{kind}/{name} is not whole: {sorted(files)}")
    return found
