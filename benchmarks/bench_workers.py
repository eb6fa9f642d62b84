"""Does throughput grow with the number of workers?

- Calls per second of 2 and of 8 workers over those of one, with an engine that takes 50 ms for each
  call and computes nothing: 32 runs, each with two operations on their way, none sharing a call.
  Bars: 1.85 and 7 times.
- Training steps per second of 2 workers with one thread each over those of one worker with two, by
  the real engine on a tiny model: 8 runs. Bar: 0.9.
- Seconds for a decision of planner and placement, with 1,000 models of 100 tenants over 64
  simulated workers, all with work waiting. Bar: 2 ms.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import alternate, faster, report, run_questions, summary
from benchmarks._served import Served, datums
from benchmarks._workload import even_rows
from tests.scheduler.slot_simulation import Simulation

CALL_S, RUNS, REAL_RUNS = 0.05, 32, 8
WARM_S, MEASURED_S = 5.0, 5.0
TIMES_OF = {2: 1.85, 8: 7.0}
REAL_TIMES, DECISION_S = 0.9, 0.002


def seconds_per_operation(served: Served, num_runs: int, operation: Callable[[Any], Any]) -> float:
    """Returns wall-clock seconds per operation of runs that always have two
    operations in flight."""
    clients = [served.training(4, seed=n) for n in range(num_runs)]
    done = [0] * num_runs
    is_over = threading.Event()

    def work(number: int) -> None:
        open_ = [operation(clients[number])]
        while not is_over.is_set():
            open_.append(operation(clients[number]))
            open_.pop(0).result()
            done[number] += 1
        for each in open_:
            each.result()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(num_runs)]
    for each in threads:
        each.start()
    time.sleep(WARM_S)
    before, began = sum(done), time.perf_counter()
    time.sleep(MEASURED_S)
    seconds = (time.perf_counter() - began) / (sum(done) - before)  # fails if all runs did
    is_over.set()
    for each in threads:
        each.join()
    return seconds


def _examples(count: int, length: int) -> list[Any]:
    """Returns examples of a small vocabulary."""
    rows = [([token % 200 for token in row], weights) for row, weights in even_rows(count, length)]
    return datums(rows)


def _null_side(workers: int) -> float:
    options = ["--device", f"null:{CALL_S}", "--workers", str(workers)]
    data = _examples(1, 8)
    with Served(Path("none"), [*options, "--max-batch-operations", "1"]) as served:
        return seconds_per_operation(
            served, RUNS, lambda client: client.forward_backward(data, "cross_entropy")
        )


def calls(workers: int, rounds: int) -> bool:
    sides = {f"{n} workers": partial(_null_side, n) for n in (workers, 1)}
    found = alternate(sides, rounds, warmups=0)
    question = f"null engine, 50 ms a call: {workers} workers over one"
    ours = found[f"{workers} workers"]
    return faster(question, ours, found["1 workers"], at_least=TIMES_OF[workers])


def real(rounds: int) -> bool:
    from tinkex.engine.convert.tiny_model import make_tiny_model

    data = _examples(8, 64)

    def step(client: Any) -> Any:
        from tinker import types

        client.forward_backward(data, "cross_entropy")
        return client.optim_step(types.AdamParams(learning_rate=1e-4))

    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "tiny", "smollm")

        def side(workers: int) -> float:
            options = ["--num-threads", "2", "--workers", str(workers)]
            with Served(model, options) as served:
                return seconds_per_operation(served, REAL_RUNS, step)

        sides = {"2 x 1": partial(side, 2), "1 x 2": partial(side, 1)}
        found = alternate(sides, rounds, warmups=0)
    question = "tiny model, 8 runs: 2 workers of one thread over one worker of two"
    return faster(question, found["2 x 1"], found["1 x 2"], at_least=REAL_TIMES)


def decisions(rounds: int) -> bool:
    owners = {f"model-{n}": f"tenant-{n % 100}" for n in range(1000)}
    places = {model: n % 64 for n, model in enumerate(owners)}
    found = []
    for _ in range(rounds):
        simulation = Simulation(64, owners, places, cost_s=0.2)
        simulation.run(0.2)
        before, began = simulation.num_decisions, time.perf_counter()
        simulation.run(1.0)
        spent_s = time.perf_counter() - began
        found.append(spent_s / (simulation.num_decisions - before))
    question = "seconds for a decision, 1,000 models over 64 simulated workers"
    per_s = round(1 / statistics.median(found))
    return report(
        question,
        statistics.median(found),
        at_most=DECISION_S,
        seconds=summary(found),
        decisions_per_s=per_s,
    )


QUESTIONS = {
    "two workers": partial(calls, 2),
    "eight workers": partial(calls, 8),
    "real engine": real,
    "decisions": decisions,
}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS, rounds=3))
