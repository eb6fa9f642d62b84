"""Long seeded walks of several training runs at once, through our client or the official one.

    python -m tests.faults.network_client <tinkex|tinker> '<json of a list of Walks>'

Takes all walks at once and prints at the end, as JSON, what every run of each saw, in the order
it was asked for. What is asked for depends on the seed alone: two walks of one seed see the same
numbers if nothing is lost, done twice or done out of order. Default settings, but that ours is
asked to retry samples; any exception makes the program fail.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

WINDOW = 24  # unanswered requests of one run
LAST = "last"


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go, and how far."""

    base_url: str
    api_key: str
    base_model: str
    runs: int
    operations: int  # of each run
    seed: int
    timeout_s: float = 300.0


class Run:
    """One training run: operations are sent without waiting, up to the window."""

    def __init__(self, library: Any, walk: Walk, number: int) -> None:
        self._library = library
        self._types = library.types
        self._walk = walk
        self._dice = random.Random(f"{walk.seed}/{number}")
        self._retries = {"retry_config": library.RetryConfig()} if is_ours(library) else {}
        service = library.ServiceClient(base_url=walk.base_url, api_key=walk.api_key)
        self._training = service.create_lora_training_client(walk.base_model, rank=4, seed=number)
        self._open: deque[tuple[str, Any]] = deque()
        self._paths: list[str] = []
        self._asked = 0
        self.seen: list[Any] = []

    @property
    def model_id(self) -> str:
        """The run's id on the server."""
        return str(self._training.model_id)

    def go(self) -> None:
        """The whole walk; `seen` holds what came back."""
        while self._asked < self._walk.operations:
            self._step()
        self._ask(LAST, self._training.save_state(LAST))
        self._sample(3)
        while self._open:
            self._settle()

    def _step(self) -> None:
        chance = self._dice.random()
        for _ in range(self._dice.randint(1, 3)):
            data = [self._datum() for _ in range(self._dice.randint(1, 3))]
            self._ask("pass", self._training.forward_backward(data, "cross_entropy"))
        if chance < 0.2:
            self._ask("pass", self._training.forward([self._datum()], "cross_entropy"))
        rate = self._dice.choice([1e-4, 1e-3])
        self._ask("step", self._training.optim_step(self._types.AdamParams(learning_rate=rate)))
        if chance > 0.85:
            self._sample(self._dice.randint(2, 6))
        elif chance > 0.78:
            self._save()
        elif chance > 0.74 and self._paths:
            path = self._dice.choice(self._paths)
            self._ask("load", self._training.load_state_with_optimizer(path))

    def _sample(self, count: int) -> None:
        sampler = self._training.save_weights_and_get_sampling_client(**self._retries)
        self._asked += 1
        for _ in range(count):
            params = self._types.SamplingParams(max_tokens=4, seed=self._dice.randrange(1000))
            prompt = self._types.ModelInput.from_ints(self._tokens(4))
            self._ask("sample", sampler.sample(prompt, self._dice.randint(1, 2), params))

    def _save(self) -> None:
        saved = self._training.save_state(f"after-{self._asked}").result(self._walk.timeout_s)
        self._asked += 1
        self._paths.append(saved.path)

    def _ask(self, kind: str, future: Any) -> None:
        self._asked += 1
        self._open.append((kind, future))
        while len(self._open) > WINDOW:
            self._settle()

    def _settle(self) -> None:
        kind, future = self._open.popleft()
        self.seen.append([kind, self._plain(kind, future.result(self._walk.timeout_s))])

    def _plain(self, kind: str, result: Any) -> Any:
        if kind == "pass":
            outputs = [list(each["logprobs"].data) for each in result.loss_fn_outputs]
            return [result.metrics["loss:sum"], outputs]
        if kind == "step":
            return dict(result.metrics or {})
        if kind == "sample":
            return [[list(each.tokens), list(each.logprobs)] for each in result.sequences]
        return result.path.rpartition("/")[2]

    def _datum(self) -> Any:
        ids = self._tokens(self._dice.randint(4, 12))
        return self._types.Datum(
            model_input=self._types.ModelInput.from_ints(ids[:-1]),
            loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
        )

    def _tokens(self, count: int) -> list[int]:
        return [self._dice.randrange(1, 90) for _ in range(count)]


def is_ours(library: Any) -> bool:
    """Whether the library is this project's."""
    return bool(library.__name__ == "tinkex")


def follow(library: Any, walk: Walk) -> dict[str, Any]:
    """What every run of a walk saw, and the runs' ids."""
    with ThreadPoolExecutor(walk.runs) as pool:
        runs = list(pool.map(lambda number: Run(library, walk, number), range(walk.runs)))
        list(pool.map(Run.go, runs))
    return {"model_ids": [run.model_id for run in runs], "seen": [run.seen for run in runs]}


if __name__ == "__main__":
    chosen = importlib.import_module(sys.argv[1])
    walks = msgspec.json.decode(sys.argv[2], type=list[Walk])
    with ThreadPoolExecutor(len(walks)) as walkers:
        outcome = list(walkers.map(lambda walk: follow(chosen, walk), walks))
    print(json.dumps(outcome), flush=True)
    os._exit(0)  # the official client's own threads sometimes abort an orderly end
