"""Every route under wrong requests: the right kinds of answers, flat memory, others unharmed."""

from __future__ import annotations

import pytest

from tests.security.campaign import attack, memory_bytes, polite_tenant
from tests.security.conftest import NewKey
from tests.security.surface import REQUESTS, families, routes
from tests.support.soak import SEED, amount
from tinkex.server.embedded import EmbeddedServer

REQUESTS_PER_FAMILY = amount(120, 20_000)
GROWTH_BYTES = amount(64, 200) * 1024 * 1024
"""Caches that are bounded by design may fill; nothing else may grow."""


def test_every_route_has_a_request() -> None:
    assert {key for key, _ in routes()} == set(REQUESTS), "a new route needs an entry in REQUESTS"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", sorted(families()))
def test_wrong_requests(family: str, server: EmbeddedServer, new_key: NewKey) -> None:
    attacker, warm_up = new_key(), max(50, REQUESTS_PER_FAMILY // 20)
    with polite_tenant(server, new_key()) as done:
        attack(
            server,
            attacker,
            families()[family],
            count=warm_up,
            seed=f"{SEED}-{family}-warm",
            new_key=new_key,
        )
        before = memory_bytes(server)
        statuses = attack(
            server,
            attacker,
            families()[family],
            count=REQUESTS_PER_FAMILY,
            seed=f"{SEED}-{family}",
            new_key=new_key,
        )
        grown = memory_bytes(server) - before
    print(
        f"{family}: {dict(sorted(statuses.items()))}, polite loops {done['loops']}, "
        f"grown by {grown >> 20} MiB"
    )
    assert grown < GROWTH_BYTES
