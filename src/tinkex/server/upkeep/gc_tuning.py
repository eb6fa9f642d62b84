"""Garbage-collector tuning: cheap young-generation runs, and full collections on a schedule.

Nearly everything dies when the last reference to it goes. What waits, thousands of futures and
their decoded bodies, is a great many small things that live long, and left alone the collector
goes through all of them again and again: with 10,000 futures it stopped the server for 0.2 s twice
a second. Cycles that are young when they die are still found soon; the others once in a while.

A look at the young is due when more things were made than died, so where requests come and go at
the same rate it comes late and finds all that is under way: with 500 requests in flight and 5,000
things to a look, it met 30,000 and took 10-30 ms. Seven hundred take a quarter of a millisecond,
and all looks together less than half of the time.
"""

from __future__ import annotations

import asyncio
import gc

_YOUNG = 700  # new things between two looks at the youngest
_LOOKS = 1_000  # at the youngest between two looks at those that survived one
_NEVER = 1_000_000
_FULL_EVERY_S = 300.0


def look_rarely() -> None:
    """Sets the collector up for a process that is a server; what was imported is looked at no
    more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _LOOKS, _NEVER)


async def look_at_everything(every_s: float = _FULL_EVERY_S) -> None:
    """A full collection at intervals, until cancelled; it stops every thread while it runs."""
    while True:
        await asyncio.sleep(every_s)
        gc.collect()
