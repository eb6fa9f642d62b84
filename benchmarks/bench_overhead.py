"""What does the stack add to the engine's own time, and how soon is a server ready?

- A training step of 8x256 through official client, HTTP, store and scheduler, over the same step
  in a bare engine. Bar: 1.05.
- A forward_backward of 1x8 on a tiny model through the stack, less the bare engine's time: what a
  round trip costs when there is nothing to compute. Bar: 15 ms.
- create_lora_training_client for an adapter of rank 32 on the real model. Bar: 100 ms.
- From the command `tinkex serve` until it can take work, over `import torch` and reading the
  weights. Bar: 1.5.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import alternate, costlier, report, run_questions, summary, timed
from benchmarks._model import model_folder
from benchmarks._served import Served, datums, step
from benchmarks._workload import even_rows
from benchmarks._yardsticks import EngineSide

RANK = 8
STEP_OVER, ROUND_TRIP_MS, CREATE_MS, READY_OVER = 1.05, 15.0, 100.0, 1.5
READ = """
import sys, torch
from safetensors.torch import load_file
weights = load_file(sys.argv[1])
print(sum(float(each.sum()) for each in weights.values()))
"""


def whole_step(rounds: int) -> bool:
    rows = even_rows(8, 256)
    with Served() as ours, EngineSide() as engine:
        training, data, adapter = ours.training(RANK), datums(rows), engine.create(RANK)
        step(training, data[:2])
        engine.step(adapter, rows[:2])
        sides = {
            "ours": lambda: step(training, data),
            "engine": lambda: engine.step(adapter, rows),
        }
        found = alternate(sides, rounds, warmups=0)
    question = "step of 8x256: stack over bare engine"
    return costlier(question, found["ours"], found["engine"], at_most=STEP_OVER)


def round_trip(rounds: int) -> bool:
    from tinkex.engine.convert.tiny_model import make_tiny_model

    rows = [([token % 200 for token in tokens], weights) for tokens, weights in even_rows(1, 8)]
    with tempfile.TemporaryDirectory() as scratch:
        model = make_tiny_model(Path(scratch) / "model")
        with Served(model) as ours, EngineSide(model) as engine:
            training, adapter = ours.training(RANK), engine.create(RANK)
            data = datums(rows)
            sides = {
                "ours": lambda: timed(lambda: _score(training, data)),
                "engine": lambda: engine.forward_backward(adapter, rows),
            }
            found = alternate(sides, 6 * rounds, warmups=3)
    over = [1000 * (mine - bare) for mine, bare in zip(found["ours"], found["engine"], strict=True)]
    question = "forward_backward of 1x8 on a tiny model: ms the stack adds"
    return report(question, statistics.median(over), at_most=ROUND_TRIP_MS, ms=summary(over))


def _score(training: Any, data: list[Any]) -> None:
    training.forward_backward(data, "cross_entropy").result()


def create_model(rounds: int) -> bool:
    with Served() as ours:
        ours.training(32)
        times = [1000 * timed(lambda: ours.training(32)) for _ in range(2 * rounds)]
    question = "create_lora_training_client of rank 32: ms"
    return report(question, statistics.median(times), at_most=CREATE_MS, ms=summary(times))


def ready(rounds: int) -> bool:
    weights = model_folder() / "model.safetensors"
    command = [sys.executable, "-c", READ, str(weights)]
    sides = {
        "ours": _ready_s,
        "bare": lambda: timed(
            lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ),
    }
    found = alternate(sides, rounds)
    question = "server ready over importing torch and reading the weights"
    return costlier(question, found["ours"], found["bare"], at_most=READY_OVER)


def _ready_s() -> float:
    with Served() as ours:
        return ours.ready_s


QUESTIONS = {
    "step": whole_step,
    "round trip": round_trip,
    "create": create_model,
    "ready": ready,
}


if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS))
