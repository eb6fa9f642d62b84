"""How much a tenant may ask at once, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.driving import Http, null_config
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.errors import Busy, OverCapacity, Unauthenticated
from tinkex.server.gate.admission import Admission
from tinkex.server.gate.auth import Keyring
from tinkex.server.gate.signing import Signer
from tinkex.server.gate.signing_secret import SecretFile, ensure_secret_file
from tinkex.store import Database, keys
from tinkex.wire.limits import DEFAULT_LIMITS, Limits


class Clock:
    """Stands still until told."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def admission(clock: Clock, **limits: int) -> Admission:
    return Admission(Limits(**limits), clock=clock)


def test_a_burst_passes_and_then_the_rate_holds(clock: Clock) -> None:
    door = admission(clock, max_requests_per_s=10, max_burst_requests=5)
    for _ in range(5):
        door.enter("a").leave()
    with pytest.raises(Busy, match="10 requests per second") as refusal:
        door.enter("a")
    assert refusal.value.code == "rate-limited"
    assert 0 < refusal.value.retry_after_s <= 0.1
    clock.now += 0.11
    door.enter("a").leave()
    with pytest.raises(Busy):
        door.enter("a")
    clock.now += 3600
    for _ in range(5):
        door.enter("a").leave()
    with pytest.raises(Busy):
        door.enter("a")


def test_over_time_exactly_the_rate_passes(clock: Clock) -> None:
    door = admission(clock, max_requests_per_s=50, max_burst_requests=1)
    passed = 0
    for _ in range(10_000):
        clock.now += 0.001
        try:
            door.enter("a").leave()
            passed += 1
        except Busy:
            pass
    assert abs(passed - 500) <= 2


def test_tenants_have_accounts_of_their_own(clock: Clock) -> None:
    door = admission(clock, max_requests_per_s=1, max_burst_requests=1)
    door.enter("greedy").leave()
    for _ in range(1000):
        with pytest.raises(Busy):
            door.enter("greedy")
    door.enter("polite").leave()
    assert door.throttled("greedy")
    assert not door.throttled("polite")
    clock.now += 61
    assert not door.throttled("greedy")


def test_open_requests_are_counted_until_they_leave(clock: Clock) -> None:
    door = admission(clock, max_open_requests=2)
    first, _ = door.enter("a"), door.enter("a")
    with pytest.raises(Busy, match=r"limit .max_open_requests. is 2"):
        door.enter("a")
    door.enter("b")
    first.leave()
    door.enter("a")


def test_bytes_are_counted_until_they_leave(clock: Clock) -> None:
    door = Admission(Limits(max_open_body_bytes=100), max_body_bytes_in_memory=150, clock=clock)
    mine = door.enter("a")
    mine.take_bytes(60)
    mine.take_bytes(40)
    with pytest.raises(Busy, match="max_open_body_bytes"):
        mine.take_bytes(1)
    other = door.enter("b")
    other.take_bytes(50)
    with pytest.raises(OverCapacity) as refusal:
        other.take_bytes(1)
    assert (refusal.value.status, refusal.value.retry_after_s) == (503, 1.0)
    mine.leave()
    other.take_bytes(50)


def test_no_rate_is_no_limit(clock: Clock) -> None:
    door = admission(clock, max_requests_per_s=0)
    for _ in range(50_000):
        door.enter("a").leave()


def test_the_defaults_never_refuse_an_official_client() -> None:
    # 2,000 samples in flight, a poll for each, and a heartbeat: all at once, and again each second.
    assert DEFAULT_LIMITS.max_burst_requests >= 2 * 2000 + 100
    assert DEFAULT_LIMITS.max_open_requests > 2000
    assert DEFAULT_LIMITS.max_open_body_bytes >= 2 * 50_000_000 + 10_485_760


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    limits = Limits(max_requests_per_s=5, max_burst_requests=30)
    config = null_config(tmp_path_factory.mktemp("strict"), limits=limits, poll_hold_s=0.2)
    with EmbeddedServer(config) as running:
        yield running


def test_a_client_above_its_rate_is_refused_with_a_retry_time(strict: EmbeddedServer) -> None:
    with httpx.Client(base_url=strict.base_url, timeout=30) as client:
        tenant = Http(client, strict.api_key)
        answers = [tenant.call("GET", "sessions") for _ in range(60)]
        refused = [each for each in answers if each.status_code == 429]
        assert refused
        assert {each.status_code for each in answers} == {200, 429}
        assert all(float(each.headers["retry-after"]) > 0 for each in refused)
        assert refused[0].json()["code"] == "rate-limited"
        assert client.get("/healthz").status_code == 200, "what needs no key is not counted"


class CountingDatabase:
    """A store that counts how often it is asked."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.reads = 0

    async def aread(self, *args: Any) -> Any:
        self.reads += 1
        return await self._db.aread(*args)


def test_a_flood_of_unknown_keys_costs_few_queries(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path / 'x.db'}")
    key = keys.new_key()
    db.write(keys.add, key, name="test", owner="me")
    counting = CountingDatabase(db)

    secret = tmp_path / "signing-secret"
    ensure_secret_file(secret)

    async def scene() -> list[Any]:
        ring = Keyring(counting, Signer(SecretFile(secret)))  # type: ignore[arg-type]
        unknown = [ring.authenticate(f"tml-{n}") for n in range(1000)]
        return await asyncio.gather(*unknown, ring.authenticate(key), return_exceptions=True)

    *refused, mine = asyncio.run(scene())
    db.close()
    assert all(isinstance(each, Unauthenticated) for each in refused)
    assert (mine.owner, mine.hash) == ("me", hashlib.sha256(key.encode()).digest())
    assert counting.reads < 10
