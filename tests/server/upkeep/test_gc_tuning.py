"""The garbage collector of a server: no full look on its own, and no litter that stays."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref

from tinkex.server.upkeep import gc_tuning

SCENE = """
import gc, weakref
from tinkex.server.upkeep import gc_tuning

class Thing:
    pass

def litter():
    thing = Thing()
    thing.itself = thing
    return weakref.ref(thing)

if {is_server}:
    gc_tuning.tune_collector()
young = litter()
full_before = gc.get_stats()[2]["collections"]
waiting = [[number] for number in range(400_000)]
print(gc.get_stats()[2]["collections"] - full_before, young() is None)
"""


def scene(*, is_server: bool) -> list[str]:
    """Full looks while much comes to wait, and whether young litter went meanwhile."""
    code = SCENE.format(is_server=is_server)
    return subprocess.check_output([sys.executable, "-c", code], text=True).split()


def test_a_server_makes_no_full_collection_because_much_waits() -> None:
    assert int(scene(is_server=False)[0]) > 0, "the interpreter's own way does"
    assert scene(is_server=True) == ["0", "True"]


CROWD = """
import collections, gc
from tinkex.server.upkeep import gc_tuning

looks = []

def note(phase, info):
    if phase == "start" and info["generation"] == 0:
        looks.append(len(gc.get_objects(0)))

gc_tuning.tune_collector()
gc.callbacks.append(note)
under_way = collections.deque([[] for _ in range(30_000)])
for wave in range(200):  # as many end as begin, in waves
    under_way.extend([] for _ in range(4_000))
    for _ in range(4_000):
        under_way.popleft()
print(max(looks))
"""


def test_no_look_at_the_young_finds_all_that_is_under_way() -> None:
    most = int(subprocess.check_output([sys.executable, "-c", CROWD], text=True))
    assert most < 5_000


class Thing:
    itself: Thing


def test_old_litter_goes_at_the_next_full_look() -> None:
    async def wait_until_gone(left: weakref.ref[Thing]) -> None:
        chore = asyncio.create_task(gc_tuning.collect_periodically(every_s=0.01))
        while left() is not None:  # noqa: ASYNC110  a collector has no event to wait for
            await asyncio.sleep(0.01)
        chore.cancel()

    thing = Thing()
    thing.itself = thing
    left = weakref.ref(thing)
    gc.collect()
    gc.disable()
    try:
        del thing
        asyncio.run(asyncio.wait_for(wait_until_gone(left), 10))
    finally:
        gc.enable()
