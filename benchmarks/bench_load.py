"""What load does a server hold, and what does it do with more?

50 tenants on 200 connections send to a server with the null engine while 10,000 futures wait for
their turn: first at rising rates until the results fall behind, then, again and again, at a quarter
more than they gave, which finds the capacity, and for half a minute at 70 % of it (a tenth of
`--seconds` if that is less); then at a quarter more than the capacity and at twice, in turn.
Requests are sent at random times, independent of earlier ones, and are timed from when they should
have been sent. The driver runs beside the server and takes its own share of the machine, which is
reported. At the end every operation is replayed and compared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import report
from tests.support.load import campaign
from tests.support.load.driver import Figures, Usage


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="at 70 %% of the capacity")
    parser.add_argument(
        "--overload-seconds", type=float, default=10.0, help="at twice, and at the peak"
    )
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--futures", type=int, default=10_000, help="that wait all the while")
    parser.add_argument("--first-rate", type=float, default=300.0, help="operations a second")
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = campaign.run(
            Path(folder),
            timeout_s=900 + 2 * options.seconds + 4 * options.overload_seconds,
            tenants=options.tenants,
            connections=options.connections,
            parked=options.futures,
            first_rate=options.first_rate,
            steady_s=options.seconds,
            steady_rounds=max(10, round(options.seconds / 30)),
            overload_s=options.overload_seconds,
        )
    met = tell(outcome)
    return 1 if options.check and not all(met) else 0


def tell(outcome: campaign.Outcome) -> list[bool]:
    """Prints the results; returns which bars are met."""
    found, steady = outcome.report, outcome.report.steady
    assert steady is not None
    phases = [*found.ramp, steady, *found.peak, *found.overload]
    refused = max(each.shed_ms.get("max", 0.0) for each in found.overload)
    at_peak, at_twice = (
        statistics.median(each.goodput for each in some) for some in (found.peak, found.overload)
    )
    return [
        report(
            "submit p99 at 70 % of capacity, over 100 ms",
            steady.submit_ms["p99"] / 100,
            at_most=1,
            capacity_per_s=found.capacities,
            stretches_p99_ms=found.stretches_p99_ms,
            outstanding=found.outstanding_least,
            **_plain(steady),
        ),
        report(
            "goodput at twice the capacity, over that at its peak",
            at_twice / at_peak,
            at_least=0.9,
            peak=[each.goodput for each in found.peak],
            twice=[_plain(each) for each in found.overload],
        ),
        report("slowest refusal at twice the capacity, over 1 s", refused / 1000, at_most=1),
        report(
            "lost, doubled, wrong or unexplained",
            len(outcome.mistakes) + sum(sum(each.errors.values()) for each in phases),
            at_most=0,
            completed=found.completed,
            examples=outcome.mistakes[:3] + [name for each in phases for name in each.errors][:3],
        ),
        *(_growth(name, usage) for name, usage in found.usage.items()),
    ]


def _growth(name: str, usage: list[Usage]) -> bool:
    """Reports the resident memory at the end over that after the first half."""
    half = len(usage) // 2
    part = max(1, half // 3)
    early = statistics.median(each.rss_mib for each in usage[half : half + part])
    late = statistics.median(each.rss_mib for each in usage[-part:])
    return report(
        f"resident memory of the {name} at the end, over that after half of the time",
        late / early,
        at_most=1.05,
        mib=[usage[0].rss_mib, early, late],
        descriptors=[usage[0].descriptors, usage[half].descriptors, usage[-1].descriptors],
        threads=[usage[0].threads, usage[half].threads, usage[-1].threads],
    )


def _plain(figures: Figures) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(figures)
    return {name: value for name, value in found.items() if name != "errors"}


if __name__ == "__main__":
    sys.exit(main())
