"""While one of two workers restarts, how slow are requests of tenants on the other?

Tenants with a key of their own each train a run, one call after the other, through HTTP and the
official client. One worker is frozen for a moment, which shows the tenants it serves, and killed;
until it is ready again the calls of the others are timed. Their p99 over that of the calls before
each kill, of several kills of either worker. Bar: twice.

- null engine: 8 tenants, 20 ms a call.
- real engine: 8 tenants, a tiny model, a thread for each worker.

No two runs share a call, so that they spread over both workers.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import report, run_questions, summary
from benchmarks._served import NAME, Served, datums
from benchmarks._workload import even_rows
from tests.server.children import children_of

TENANTS, KILLS, CALL_S = 8, 6, 0.02
MAX_TRIES = 4 * KILLS  # of kills, some of which strike a worker that has no run, or all of them
WARM_S, QUIET_S, FROZEN_S = 6.0, 4.0, 3.0
TIMES = 2.0


class Call(NamedTuple):
    """Start and end of a tenant's call."""

    began: float
    ended: float


class Tenants:
    """Threads that train, one run each, while the block runs."""

    def __init__(self, served: Served, length: int) -> None:
        self._served = served
        self._length = length
        self._is_over = threading.Event()
        self.calls: list[list[Call]] = [[] for _ in range(TENANTS)]
        self._threads = [threading.Thread(target=self._train, args=[n]) for n in range(TENANTS)]

    def __enter__(self) -> Tenants:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for each in self._threads:
            each.join()

    def between(self, begin: float, end: float, tenants: Sequence[int]) -> list[float]:
        """Returns the seconds of the tenants' calls that were open at some time
        between two moments."""
        return [
            call.ended - call.began
            for tenant in tenants
            for call in list(self.calls[tenant])
            if call.ended > begin and call.began < end
        ]

    def without_answer_since(self, moment: float) -> list[int]:
        """Returns the tenants that got no response since then."""
        lasts = [calls[-1].ended if calls else 0.0 for calls in self.calls]
        return [tenant for tenant, last in enumerate(lasts) if last < moment]

    def _train(self, number: int) -> None:
        from tinker import ServiceClient

        from tinkex.server.admin import create_key

        key = create_key(self._served.data_dir, None, name=f"t{number}", is_new_owner=True).key
        service = ServiceClient(base_url=self._served.url, api_key=key)
        client = service.create_lora_training_client(base_model=NAME, rank=4, seed=number)
        rows = even_rows(4, self._length)
        data = datums([([token % 200 for token in row], weights) for row, weights in rows])
        while not self._is_over.is_set():
            began = time.perf_counter()
            client.forward_backward(data, "cross_entropy").result()
            self.calls[number].append(Call(began, time.perf_counter()))
        service.close("success").result()


def ratio(options: list[str], model: Path, length: int) -> tuple[float, dict[str, Any]]:
    """Returns the p99 beside a restart over the quiet p99, and both figures."""
    quiet: list[float] = []
    beside: list[float] = []
    restarts: list[float] = []
    options = [*options, "--workers", "2", "--max-batch-operations", "1"]
    with Served(model, options) as served, Tenants(served, length) as tenants:
        _await_both(served.url)
        time.sleep(WARM_S)
        for turn in range(MAX_TRIES):
            began = time.perf_counter()
            time.sleep(QUIET_S)
            struck_at = time.perf_counter()
            victim = children_of(served.pid)[turn % 2]
            os.kill(victim, signal.SIGSTOP)
            time.sleep(FROZEN_S)
            struck = tenants.without_answer_since(struck_at + FROZEN_S / 10)
            os.kill(victim, signal.SIGKILL)
            time.sleep(0.2)  # until the server has noticed
            _await_both(served.url)
            ready_at = time.perf_counter()
            spared = sorted(set(range(TENANTS)) - set(struck))
            if struck and spared:
                quiet += tenants.between(began, struck_at, spared)
                beside += tenants.between(struck_at, ready_at, spared)
                restarts.append(ready_at - struck_at)
            if len(restarts) == KILLS:
                break
            time.sleep(WARM_S)
    found = {
        "quiet_p99_s": round(_p99(quiet), 4),
        "beside_p99_s": round(_p99(beside), 4),
        "quiet_calls": len(quiet),
        "beside_calls": len(beside),
        "kills": len(restarts),
        "restart_s": round(statistics.median(restarts), 2),
    }
    return found["beside_p99_s"] / found["quiet_p99_s"], found


def _await_both(url: str) -> None:
    while True:
        engine = httpx.get(f"{url}/healthz", timeout=30).json()["engine"]
        if [each["state"] for each in engine["workers"]] == ["ready"] * 2:
            return
        time.sleep(0.05)


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def _answer(question: str, options: list[str], model: Path, length: int, rounds: int) -> bool:
    found = []
    for _ in range(rounds):
        found.append(ratio(options, model, length))
        print(f"  {found[-1]}", file=sys.stderr, flush=True)
    ratios = [each for each, _ in found]
    parts = {name: [each[name] for _, each in found] for name in found[0][1]}
    return report(
        question, statistics.median(ratios), at_most=TIMES, ratios=summary(ratios), **parts
    )


def null(rounds: int) -> bool:
    options = ["--device", f"null:{CALL_S}"]
    question = "null engine, 20 ms a call: p99 beside a restart over quiet p99"
    return _answer(question, options, Path("none"), 8, rounds)


def real(rounds: int) -> bool:
    from tinkex.engine.convert.tiny_model import make_tiny_model

    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", "smollm")
        question = "real engine, tiny model: p99 beside a restart over quiet p99"
        return _answer(question, ["--num-threads", "2"], model, 64, rounds)


QUESTIONS = {"null engine": null, "real engine": real}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS, rounds=3))
