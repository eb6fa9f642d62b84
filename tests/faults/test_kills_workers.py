"""Two workers are killed, frozen and cut off, with their server, its clients, its object store and
its database: a run through all of that equals a quiet one, bit by bit.

The workers are children of the server, or dial in, or dial in and only train and only sample; each
has one thread and computes a tiny model with the real engine. Short forms run with the other tests;
`make soak` strikes more than 300 times at workers that dial in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from tests.faults.audit import FILES
from tests.faults.campaign import busy_config
from tests.faults.site import (
    DATABASE_FAULTS,
    STORE_FAULTS,
    Site,
    config_for_site,
    faults_of,
)
from tests.faults.site_campaign import SiteCampaign
from tests.faults.site_workers import KINDS, SiteKind
from tests.faults.test_takeover import assert_all_done_once, run_of
from tests.server.driving import MODEL
from tests.store.postgres import PostgresServer, own_postgres
from tests.support.faulty_link import FaultyLink
from tests.support.object_stores import bucket, object_store
from tests.support.soak import IS_SOAK, SEED, amount
from tests.support.tcp_listener import free_port, target_of
from tinkex.depot.object_depot import ObjectDepot
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

__all__ = ["bucket", "object_store", "own_postgres"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600 if IS_SOAK else 300)]

WALKS = [(kind, number) for number in range(amount(1, 3)) for kind in KINDS]
FAULTS_OF_A_WALK = amount(3, 28)
RUNS: list[tuple[SiteKind, str]] = [("remote", "tinkex")]
if IS_SOAK:
    RUNS = [(kind, package) for kind in KINDS for package in ("tinker", "tinkex")]
FAULTS_OF_A_RUN = amount(3, 40)
EVERY = 5  # steps between two faults of a run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")


@pytest.fixture
def store(object_store: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyLink]:
    """The link by which the server and its workers reach the object store of `bucket`."""
    with FaultyLink(target_of(object_store)) as link:
        monkeypatch.setenv("AWS_ENDPOINT", link.url)
        yield link


def config_of(data_dir: Path, model: Path, **changes: Any) -> ServerConfig:
    """A busy server that computes each request alone."""
    config = busy_config(data_dir, device="cpu", num_threads=1, **changes)
    return msgspec.structs.replace(
        config,
        models=(ServedModel(name=MODEL, source=str(model)),),
        scheduler=msgspec.structs.replace(config.scheduler, is_deterministic=True),
        is_deterministic=True,
    )


def at_site(config: ServerConfig, kind: SiteKind) -> ServerConfig:
    return config_for_site(config, kind, f"127.0.0.1:{free_port()}")


def chosen(dice: random.Random, count: int, kind: SiteKind, also: tuple[str, ...]) -> list[str]:
    """A seeded choice: each fault once before one comes twice; connections of single workers fail
    most often."""
    kinds = [*faults_of(kind), *also]
    kinds += [each for each in kinds if each.endswith("one worker")]
    found: list[str] = []
    while len(found) < count:
        found += dice.sample(kinds, len(kinds))
    return found[:count]


@pytest.mark.parametrize(("kind", "number"), WALKS)
def test_clients_of_every_library_notice_no_fault(
    tmp_path: Path,
    tiny: Path,
    bucket: str,
    store: FaultyLink,
    capsys: pytest.CaptureFixture[str],
    kind: SiteKind,
    number: int,
) -> None:
    folder = tmp_path / "campaign"
    config = at_site(config_of(folder / "data", tiny, depot=bucket), kind)
    dice = random.Random(f"{SEED}/{kind}/{number}")
    faults = chosen(dice, FAULTS_OF_A_WALK, kind, STORE_FAULTS)
    campaign = SiteCampaign(
        folder, SEED + number, kind=kind, config=config, store=store, at_least=15
    )
    outcome = campaign.run(faults)
    if IS_SOAK:
        with capsys.disabled():
            print(f"\n{kind}, {outcome}")
    assert outcome.violations == [], f"seed {SEED}, campaign {number}, faults {faults}"
    assert outcome.deaths == faults


@pytest.mark.parametrize(("kind", "package"), RUNS)
def test_a_run_through_faults_of_workers_store_and_database_equals_a_quiet_one(
    tmp_path: Path,
    tiny: Path,
    bucket: str,
    store: FaultyLink,
    own_postgres: PostgresServer,
    kind: SiteKind,
    package: str,
) -> None:
    dice = random.Random(f"{SEED}/{kind}/{package}")
    faults = chosen(dice, FAULTS_OF_A_RUN - 1, kind, (*STORE_FAULTS, *DATABASE_FAULTS))
    faults.append(dice.choice(DATABASE_FAULTS))
    steps = EVERY * (len(faults) + 1)
    quiet = config_of(tmp_path / "quiet", tiny)
    with EmbeddedServer(quiet) as server:
        expected = run_of(package, server.base_url, server.api_key, steps, {})
    (folder,) = (quiet.data_dir / "checkpoints").iterdir()

    disturbed = at_site(
        config_of(
            tmp_path / "disturbed",
            tiny,
            depot=bucket,
            database_url=own_postgres.url,
            lease_s=4.0,
            is_standby=True,
        ),
        kind,
    )
    server = EmbeddedServer(disturbed)
    site = Site(server, disturbed, tmp_path, dice, kind=kind, store=store, database=own_postgres)
    with site:
        strikes: dict[int, Callable[[], None]] = {
            EVERY * place: partial(site.strike, fault) for place, fault in enumerate(faults, 1)
        }
        seen = run_of(package, site.url, server.api_key, steps, strikes)
        assert seen == expected, f"seed {SEED}, {kind}, {package}, faults {faults}"
        assert site.struck == faults
        assert_all_done_once(server.base_url, server.api_key, steps)
    assert content_of(saved_folder(own_postgres.url, bucket, tmp_path)) == content_of(folder)


def saved_folder(database_url: str, depot: str, tmp_path: Path) -> Path:
    """A copy of the only checkpoint."""
    with psycopg.connect(database_url) as conn:
        ((folder_id,),) = conn.execute("SELECT checkpoint_id FROM checkpoints").fetchall()
    ObjectDepot(depot).get("checkpoints", folder_id, tmp_path / "saved")
    return tmp_path / "saved"


def content_of(folder: Path) -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name in FILES}
    assert len(found) == 2  # weights and the optimizer's state
    return found
