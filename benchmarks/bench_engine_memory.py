"""How much memory does the engine keep after mixed traffic, on a tiny model?

Adapters of several ranks, batches and prompts of all lengths, samples of several lengths, prompts
scored, samplers saved, loaded and unloaded: `--rounds` of that on a real engine process, then a
pause. Bar: 256 MiB more than at the start once it has rested. `--only "over time"` prints the
resident memory after every round and in the pause, and has no bar.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import report, run_questions
from benchmarks._resident import peak_mib, resident_mib

from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.engine.interface import (
    LoraSpec,
    OptimRequest,
    SampleRequest,
    SamplingParams,
    TrainDatum,
    TrainRequest,
)
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.local import EngineProcess

MOST_MIB = 256.0
REST_S = 75.0
"""Seconds of rest: memory kept for speed is freed after a minute without work."""
RANKS = (4, 8, 16, 32, 64)
MODEL = "tiny"


class Traffic:
    """Rounds of mixed work; the same seed gives the same rounds."""

    def __init__(self, engine: EngineProcess, folder: Path, seed: int = 1) -> None:
        self._engine, self._folder = engine, folder
        self._rng = np.random.default_rng(seed)
        self._samplers: list[str] = []
        for rank in RANKS:
            engine.create_adapter(f"rank-{rank}", MODEL, LoraSpec(rank=rank, seed=rank))

    def round(self, number: int) -> None:
        """One training step of some adapters, a new sampler, and a burst of samples."""
        names = [f"rank-{each}" for each in RANKS[: self._rng.integers(1, 6)]]
        self._engine.forward_backward([self._train(name) for name in names])
        self._engine.optim_step([OptimRequest(adapter_id=name) for name in names])
        self._save(names[-1], f"sampler-{number}")
        count = int(self._rng.integers(1, 24))
        self._engine.submit_samples([self._sample(f"{number}-{i}") for i in range(count)])
        while (progress := self._engine.step_sampling()).running or progress.waiting:
            pass

    def _train(self, name: str) -> TrainRequest:
        lengths = self._rng.integers(8, 500, self._rng.integers(1, 9))
        data = [
            TrainDatum(
                tokens=self._tokens(length),
                inputs={
                    "target_tokens": self._tokens(length),
                    "weights": np.ones(length, np.float32),
                },
            )
            for length in lengths
        ]
        return TrainRequest(adapter_id=name, data=data, backward=self._rng.random() < 0.8)

    def _save(self, adapter_id: str, sampler_id: str) -> None:
        if self._rng.random() < 0.5:
            self._engine.snapshot(adapter_id, sampler_id)
        else:
            folder = self._folder / sampler_id
            self._engine.save_adapter(adapter_id, folder)
            self._engine.load_sampler(sampler_id, MODEL, folder)
        self._samplers.append(sampler_id)
        if len(self._samplers) > 6:
            self._engine.unload_sampler(self._samplers.pop(0))

    def _sample(self, request_id: str) -> SampleRequest:
        return SampleRequest(
            request_id=request_id,
            model=MODEL,
            tokens=self._tokens(self._rng.integers(4, 400)),
            sampler_id=str(self._rng.choice(self._samplers)),
            params=SamplingParams(max_tokens=int(self._rng.integers(1, 100)), seed=1),
            num_samples=int(self._rng.integers(1, 4)),
            prompt_logprobs=self._rng.random() < 0.3,
        )

    def _tokens(self, length: int | np.integer) -> np.ndarray:
        return self._rng.integers(0, 256, int(length))


@contextmanager
def engine_with_traffic() -> Iterator[tuple[EngineProcess, Traffic]]:
    """Starts an engine on a tiny model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_tiny_model(folder / "model", "smollm")
        with EngineProcess(EngineOptions(models={MODEL: str(model)})) as engine:
            yield engine, Traffic(engine, folder)


def rested(rounds: int) -> bool:
    with engine_with_traffic() as (engine, traffic):
        start = resident_mib(engine.pid)
        for number in range(rounds):
            traffic.round(number)
        busy = resident_mib(engine.pid)
        time.sleep(REST_S)
        kept = resident_mib(engine.pid) - start
        return report(
            f"MiB kept after {rounds} rounds of mixed traffic and a rest",
            kept,
            at_most=MOST_MIB,
            start_mib=round(start),
            busy_mib=round(busy),
            peak_mib=round(peak_mib(engine.pid)),
        )


def over_time(rounds: int) -> bool:
    with engine_with_traffic() as (engine, traffic):
        began = time.monotonic()

        def tell(what: str) -> None:
            mib = resident_mib(engine.pid)
            print(f"{time.monotonic() - began:6.0f} s  {what:10} {mib:6.0f} MiB", flush=True)

        tell("start")
        for number in range(rounds):
            traffic.round(number)
            tell(f"round {number + 1}")
        for _ in range(int(REST_S / 15)):
            time.sleep(15)
            tell("rest")
    return True


QUESTIONS = {"rested": rested}
BY_NAME = {"over time": over_time}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS, rounds=20, by_name=BY_NAME))
