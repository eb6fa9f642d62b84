"""Kills of a server whose folders are in an object store, and which loses its disk each time.

The same clients and the same judges as in test_kills.py. Every start finds no local copy, as on
another machine.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign, busy_config
from tests.support.object_stores import bucket, object_store
from tests.support.soak import IS_SOAK, SEED, amount
from tinkex import crashpoints

__all__ = ["bucket", "object_store"]

KINDS = ("checkpoints", "snapshots", "samplers")
AT_ONCE = 3


def all_points() -> list[str]:
    points = [point for point in crashpoints.POINTS if point.startswith("depot.")]
    return [f"{point}={kind}" for point in points for kind in KINDS]


def plan(number: int) -> list[str]:
    """The kills of a campaign: points of the depot, and some at random moments."""
    points, dice = all_points(), random.Random(f"{SEED}/depot/{number}")
    random.Random(SEED).shuffle(points)
    start = number * AT_ONCE % len(points)
    mine = [f"{each}:{dice.randint(1, 3)}" for each in points[start:][: amount(2, AT_ONCE)]]
    kills = [*mine, *(dice.choice(("server", "engine", "both")) for _ in range(amount(1, 3)))]
    dice.shuffle(kills)
    return kills


@pytest.mark.soak
@pytest.mark.parametrize("number", range(amount(1, 12)))
def test_nothing_is_lost_between_two_objects(
    tmp_path: Path, bucket: str, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    kills = plan(number)
    config = busy_config(tmp_path / "campaign" / "data", depot=bucket)
    outcome = Campaign(tmp_path / "campaign", SEED + number, config=config).run(kills)
    if IS_SOAK:
        with capsys.disabled():
            print(f"\n{outcome}")
    assert outcome.violations == [], f"seed {SEED}, campaign {number}, kills {kills}"
    assert outcome.unreached == []
    assert len(outcome.deaths) >= len(kills)
