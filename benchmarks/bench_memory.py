"""How much memory does the server need, beside PEFT, and what do more adapters add?

- The most that server and engine held over training steps of 8x256, over the most the PEFT loop
  held; that loop runs with the plain allocator here, with which it holds least. Bar: 0.5.
- The base is there once: what 16 more trained adapters add, over their own bytes (weights,
  gradients and two moments in float32). Bar: 1.25.
- 100 idle adapters of rank 32 cost disk, not memory: what they add once they have rested, over
  their own bytes. Bar: 0.10. By name only: it may take 18 GB of disk while it runs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import report, run_questions
from benchmarks._model import Sizes, model_folder
from benchmarks._resident import peak_mib, resident_mib
from benchmarks._served import Served, datums, step
from benchmarks._workload import even_rows
from benchmarks._yardsticks import PeftSide

OF_PEFT, OF_OWN_BYTES, IDLE_OF_OWN_BYTES = 0.5, 1.25, 0.10
MANY, IDLE, IDLE_RANK = 16, 100, 32
PLAIN: dict[str, str] = {}
REST_S = 90.0
"""Adapters leave the memory a minute after their last use, one after the other."""


def beside_peft(rounds: int) -> bool:
    """Compares peaks over as many steps as there are rounds: memory varies less than time."""
    rows = even_rows(8, 256)
    with PeftSide(8, PLAIN) as peft:
        for _ in range(rounds):
            peft.step(rows)
        theirs = peak_mib(peft.pid)
    with Served() as ours:
        training, data = ours.training(8), datums(rows)
        for _ in range(rounds):
            step(training, data)
        mine = peak_mib(ours.pid)
    return report(
        "peak memory of 8x256 steps over PEFT's",
        mine / theirs,
        at_most=OF_PEFT,
        ours_mib=round(mine),
        peft_mib=round(theirs),
    )


def base_once(_: int) -> bool:
    with Served() as ours:
        for _ in range(4):
            train_one(ours, 8)
        before = resident_mib(ours.pid)
        for _ in range(MANY):
            train_one(ours, 8)
        added = resident_mib(ours.pid) - before
    own = MANY * own_mib(8)
    return report(
        f"memory {MANY} more adapters of rank 8 add over their own bytes",
        added / own,
        at_most=OF_OWN_BYTES,
        added_mib=round(added),
        own_mib=round(own),
    )


def idle_adapters(_: int) -> bool:
    with Served() as ours:
        train_one(ours, IDLE_RANK)
        before = resident_mib(ours.pid)
        for _ in range(IDLE):
            train_one(ours, IDLE_RANK)
        at_once = resident_mib(ours.pid) - before
        rested = lowest(lambda: resident_mib(ours.pid), REST_S) - before
    own = IDLE * own_mib(IDLE_RANK)
    return report(
        f"memory {IDLE} idle adapters of rank {IDLE_RANK} keep over their own bytes",
        rested / own,
        at_most=IDLE_OF_OWN_BYTES,
        rested_mib=round(rested),
        at_once_mib=round(at_once),
        own_mib=round(own),
    )


def train_one(ours: Served, rank: int) -> Any:
    """Creates an adapter and trains it by one small step, so that all its state exists."""
    training = ours.training(rank)
    step(training, datums(even_rows(1, 8)))
    return training


def own_mib(rank: int) -> float:
    """Returns the MiB of weights, gradients and two moments of an adapter on every matrix
    and the head."""
    sizes = Sizes.read(model_folder())
    layers = sizes.num_layers * sum(a + b for a, b in sizes.layer_matrices().values())
    return rank * (layers + sizes.hidden + sizes.vocab) * 4 * 4 / 2**20


def lowest(measure: Callable[[], float], seconds: float) -> float:
    """Returns the least of repeated measurements over some seconds."""
    found, end = [measure()], time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.5)
        found.append(measure())
    return min(found)


QUESTIONS = {"beside PEFT": beside_peft, "base once": base_once}
BY_NAME = {"idle adapters": idle_adapters}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS, rounds=2, by_name=BY_NAME))
