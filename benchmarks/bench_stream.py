"""What does streaming a sample cost?

- The first streamed token of a prompt of 256 tokens on an idle server, through SDK, HTTP, store and
  scheduler, over the bare engine's own first token. Bar: 1.2.
- Throughput of 64 samples of 64 tokens, all streamed at once, over the same samples unstreamed.
  Bar: 0.9.

Both clients are this SDK: the official one does not stream.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import alternate, costlier, faster, run_questions, timed
from benchmarks._model import NAME
from benchmarks._served import KEY, Served
from benchmarks._yardsticks import EngineSide

import tinkex
from tinkex import types

FIRST_OVER, THROUGHPUT = 1.2, 0.9
PROMPT, STREAMS, NEW = 256, 64, 64

_draw = random.Random(1)


def first_token(rounds: int) -> bool:
    with Served() as ours, EngineSide() as engine:
        sampler = _sampler(ours)
        sides = {
            "ours": lambda: _first_s(sampler),
            "engine": lambda: engine.first_token(_prompt(PROMPT)),
        }
        found = alternate(sides, 3 * rounds, warmups=2)
    question = f"first streamed token of {PROMPT}: stack over bare engine"
    return costlier(question, found["ours"], found["engine"], at_most=FIRST_OVER)


def throughput(rounds: int) -> bool:
    with Served() as ours:
        sampler = _sampler(ours)
        sides = {
            "streamed": lambda: timed(lambda: _stream_all(sampler)),
            "whole": lambda: timed(lambda: _sample_all(sampler)),
        }
        found = alternate(sides, rounds)
    question = f"{STREAMS} samples of {NEW} tokens: streamed over unstreamed throughput"
    return faster(question, found["streamed"], found["whole"], at_least=THROUGHPUT)


def _sampler(ours: Served) -> Any:
    service = tinkex.ServiceClient(base_url=ours.url, api_key=KEY)
    return service.create_sampling_client(base_model=NAME)


def _prompt(length: int) -> list[int]:
    """Returns tokens that no earlier prompt began with: the engine would have them in its cache."""
    return [_draw.randrange(200, 20_000) for _ in range(length)]


def _sample(sampler: Any, length: int, max_tokens: int, *, stream: bool) -> Any:
    params = types.SamplingParams(max_tokens=max_tokens, stop=[])
    return sampler.sample(types.ModelInput.from_ints(_prompt(length)), 1, params, stream=stream)


def _first_s(sampler: Any) -> float:
    began = time.perf_counter()
    with _sample(sampler, PROMPT, 32, stream=True) as stream:
        next(stream)
        return time.perf_counter() - began


def _stream_all(sampler: Any) -> None:
    """Reads every stream as it arrives, in a thread of its own."""
    counts = [0] * STREAMS

    def read(place: int, stream: Any) -> None:
        counts[place] = sum(len(delta.tokens) for delta in stream)

    readers = []
    for place in range(STREAMS):
        stream = _sample(sampler, 32, NEW, stream=True)
        readers.append(threading.Thread(target=read, args=(place, stream)))
        readers[-1].start()
    for reader in readers:
        reader.join()
    assert counts == [NEW] * STREAMS, counts


def _sample_all(sampler: Any) -> None:
    handles = [_sample(sampler, 32, NEW, stream=False) for _ in range(STREAMS)]
    counts = [len(each.result().sequences[0].tokens) for each in handles]
    assert counts == [NEW] * STREAMS, counts


QUESTIONS = {"first token": first_token, "throughput": throughput}


if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS))
