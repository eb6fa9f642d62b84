"""Does scoring by many single requests reach the speed of one batch?

`compute_logprobs` of 128-token prompts, each a request of its own through the whole stack, all sent
at once, beside one forward call of the bare engine over the same tokens. A round has 32 prompts;
"whole", by name, has 512. Bar: 0.8 of the engine's speed.
"""

from __future__ import annotations

import itertools
import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import alternate, faster, run_questions, timed
from benchmarks._served import Served
from benchmarks._workload import even_rows
from benchmarks._yardsticks import EngineSide

LENGTH, RANK, OF_ENGINE = 128, 8, 0.8


def measure(count: int, rounds: int) -> bool:
    """Uses new prompts every round, so that none is cached; the same for both sides."""
    with Served() as ours, EngineSide() as engine:
        samplers, _ = ours.adapters(1, RANK)
        adapter = engine.create(RANK)
        score_all(samplers[0], even_rows(4, LENGTH))  # warm up
        engine.forward(adapter, even_rows(4, LENGTH))
        our_seeds, engine_seeds = itertools.count(1), itertools.count(1)

        def engine_turn() -> float:
            return engine.forward(adapter, even_rows(count, LENGTH, seed=next(engine_seeds)))

        sides = {
            "ours": lambda: score_all(samplers[0], even_rows(count, LENGTH, seed=next(our_seeds))),
            "engine": engine_turn,
        }
        found = alternate(sides, rounds, warmups=0)
    question = f"scoring {count}x{LENGTH} by single requests: speed beside one engine batch"
    return faster(question, found["ours"], found["engine"], at_least=OF_ENGINE)


def score_all(sampler: Any, rows: list[Any]) -> float:
    """Returns the seconds until every prompt has its logprobs."""
    from tinker import types

    prompts = [types.ModelInput.from_ints(tokens) for tokens, _ in rows]

    def work() -> None:
        handles = [sampler.compute_logprobs(prompt) for prompt in prompts]
        for handle in handles:
            assert len(handle.result()) == LENGTH + 1

    return timed(work)


if __name__ == "__main__":
    questions = {"32": partial(measure, 32)}
    sys.exit(run_questions(__doc__, questions, by_name={"whole": partial(measure, 512)}))
