"""A bad network between either client and a real server: nothing is lost, nothing is done twice.

Both clients walk the same seeded walk twice on one server, once through a proxy that spoils a
share of the requests and once without it. What they see must be equal, number for number; the
null engine's numbers are hashes of everything applied before, so equal numbers mean: each operation
once, and in order. The server's log and the saved adapters are looked at besides.

HTTP/1.1 only, for that is what the server speaks. The long form is 10,000 operations through each
client on the null engine and 1,000 on the real one, in slices with a seed of their own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults.network_client import LAST, Walk
from tests.server.children import start_module
from tests.server.driving import null_config
from tests.support.fault_proxy import FaultProxy
from tests.support.network_faults import FAULTS, SeededPlan
from tests.support.soak import SEED, amount
from tinkex.scheduler import SchedulerConfig
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

CLIENTS = ("tinkex", "tinker")
LONGEST_S = amount(110, 900)
SEEDS = range(SEED, SEED + amount(1, 10))


@pytest.fixture(params=["null", "torch"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> ServerConfig:
    """Both engines; the real one with numbers that do not depend on what shares a batch."""
    if request.param == "null":
        return null_config(tmp_path / "server", scheduler=SchedulerConfig(), poll_hold_s=10.0)
    from tinkex.engine.convert.tiny_model import make_tiny_model

    return ServerConfig(
        data_dir=tmp_path / "server",
        port=0,
        models=(ServedModel(name="tiny", source=str(make_tiny_model(tmp_path / "tiny"))),),
        scheduler=SchedulerConfig(is_deterministic=True),
        is_deterministic=True,
        num_threads=1,
        poll_hold_s=10.0,
    )


@pytest.fixture
def server(config: ServerConfig) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config) as running:
        yield running


@pytest.mark.soak
@pytest.mark.timeout(LONGEST_S + 60)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_bad_network_changes_nothing(
    config: ServerConfig, server: EmbeddedServer, seed: int
) -> None:
    runs = amount(2, 8)
    operations = amount(40, 125) if config.device == "null" else amount(12, 13)
    walk = Walk(
        base_url=server.base_url,
        api_key=server.api_key,
        base_model=config.models[0].name,
        runs=runs,
        operations=operations,
        seed=seed,
    )
    with FaultProxy(server.base_url, SeededPlan(seed)) as proxy:
        walks = [msgspec.structs.replace(walk, base_url=proxy.url), walk]
        with ThreadPoolExecutor(len(CLIENTS)) as pool:
            ours, official = pool.map(lambda client: follow(client, walks), CLIENTS)
    disturbed, quiet = ours

    about = f"TINKEX_SEED={seed}, {dict(proxy.struck)}"
    assert proxy.mistakes == []
    assert sum(proxy.struck[act.__name__] for act in FAULTS) > operations * runs / 10, about
    for each in (disturbed, quiet, *official):
        assert each["seen"] == quiet["seen"], about
        for model_id, expected in zip(each["model_ids"], quiet["model_ids"], strict=True):
            assert applied_once(config, model_id) == applied_once(config, expected), about
            assert saved_state(config, model_id) == saved_state(config, expected), about


def follow(client: str, walks: list[Walk]) -> Any:
    """What a client in its own process saw on its walks."""
    request = msgspec.json.encode(walks).decode()
    running = start_module("tests.faults.network_client", client, request)
    output, errors = running.communicate(timeout=LONGEST_S)
    assert running.returncode == 0, f"{client} (TINKEX_SEED={walks[0].seed}): {errors[-4000:]}"
    return json.loads(output.strip().splitlines()[-1])


def applied_once(config: ServerConfig, model_id: str) -> list[str]:
    """The kinds of a model's operations in order, all of them done and answered once."""
    query = (
        "SELECT seq_id, kind, state, COUNT(results.request_id) FROM operations "
        "LEFT JOIN results USING (request_id) WHERE model_id = ? "
        "GROUP BY operations.request_id ORDER BY seq_id"
    )
    rows = _select(config, query, model_id)
    assert [row[0] for row in rows] == list(range(len(rows)))
    assert {(row[2], row[3]) for row in rows} == {("done", 1)}
    return [row[1] for row in rows]


def saved_state(config: ServerConfig, model_id: str) -> dict[str, bytes]:
    """The files of the adapter as it was saved at the end of the walk."""
    query = "SELECT checkpoint_id FROM checkpoints WHERE model_id = ? AND name = ?"
    ((checkpoint_id,),) = _select(config, query, model_id, LAST)
    folder = config.data_dir / "checkpoints" / checkpoint_id
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _select(config: ServerConfig, query: str, *values: str) -> list[Any]:
    with closing(sqlite3.connect(config.data_dir / "tinkex.db")) as db:
        return db.execute(query, values).fetchall()
