"""Many tenants at once, up to the server's capacity and beyond: nothing is lost or done twice.

In the long form: 50 tenants on 200 connections, 10,000 futures that wait all the while, ten minutes
at 70 % of the capacity found before, then twice the capacity. How fast it goes is not judged here
but by `benchmarks/bench_load.py`, which runs the same.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.support.load import campaign
from tests.support.load.driver import Usage
from tests.support.soak import IS_SOAK, SEED, amount

LONGEST_S = amount(110, 1500)
PARKED = amount(400, 10_000)
SPARE = 8  # files and threads that a pool opens at need
MOST_GROWTH = 1.05  # of resident memory after the first half


@pytest.mark.soak
@pytest.mark.timeout(LONGEST_S + 60)
def test_a_server_under_load_loses_nothing_and_holds_no_more_and_more(tmp_path: Path) -> None:
    outcome = campaign.run(
        tmp_path,
        timeout_s=LONGEST_S,
        tenants=amount(8, 50),
        connections=amount(32, 200),
        most_connections=amount(400, 2000),
        parked=PARKED,
        first_rate=amount(80, 200),
        raise_every_s=0.5 if not IS_SOAK else 4.0,
        most_raises=amount(3, 16),
        steady_s=amount(2, 600),
        sustained_s=amount(1, 5),
        steady_rounds=amount(1, 10),
        overload_s=amount(2, 60),
        overload_rounds=amount(1, 3),
        seed=SEED,
    )
    report = outcome.report
    assert outcome.mistakes == []
    assert report.steady is not None
    for phase in (*report.ramp, report.steady, *report.peak, *report.overload):
        assert phase.errors == {}, "nothing but promises and 429"
        assert phase.without_retry_after == 0
        assert phase.lost_connections == 0
    # What falls due in the last moment may stay unsent; on a busy machine that is a few requests.
    assert report.steady.unsent <= max(5, report.steady.offered / 1000)
    assert report.outstanding_least >= PARKED
    for usage in report.usage.values():
        check_flat(usage)


def check_flat(usage: list[Usage]) -> None:
    """Fails if a process holds more and more."""
    half = len(usage) // 2
    early, late = usage[half : half + max(1, half // 3)], usage[-max(1, half // 3) :]
    most = max(each.descriptors for each in usage[: max(1, half)])
    assert max(each.descriptors for each in late) <= most + SPARE
    assert late[-1].threads <= usage[half].threads + SPARE
    if IS_SOAK:
        grown = statistics.median(each.rss_mib for each in late)
        assert grown <= MOST_GROWTH * statistics.median(each.rss_mib for each in early)
