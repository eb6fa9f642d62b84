"""Engine workers that cannot take everything, each a process of its own.

    python -m tests.faults.weak_workers --fd N     the kind is named by the model it serves

- `poisoned` dies by a signal at any batch with the token `POISON` in it, as by a bug in a kernel;
- `small` has 96 MiB of address space beyond what it starts with;
- `hungry` takes a lot of memory for requests of many tokens, and its time over them.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path
from typing import Any

from tinkex.engine.interface import (
    Engine,
    RequestError,
    SamplingProgress,
    TrainRequest,
    TrainResult,
)
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process import worker

POISON = 113
ROOM_BYTES = 96 * 2**20
LARGE_TOKENS = 10_000


class Poisoned(NullEngine):
    """Dies of poison, in training and in sampling."""

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        if any(POISON in datum.tokens for request in batch for datum in request.data):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().forward_backward(batch)

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        if any(POISON in request.tokens for request in self._queue.values()):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step_sampling(budget_s)


class Hungry(NullEngine):
    """Grows by 256 MiB while it works on a large request."""

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        if any(datum.tokens.size > LARGE_TOKENS for request in batch for datum in request.data):
            held = bytearray(os.urandom(2**20) * 256)
            time.sleep(5)
            held.clear()
        return super().forward_backward(batch)


def build(options: EngineOptions) -> Engine:
    """The engine named by the only model there is."""
    (kind,) = options.models.values()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if kind == "small":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    kinds: dict[str, Any] = {"poisoned": Poisoned, "small": NullEngine, "hungry": Hungry}
    engine: Engine = kinds[kind](tuple(options.models))
    return engine


if __name__ == "__main__":
    worker.build_engine = build
    worker.main()
