"""Does cost grow no faster than work: with the batch, the clients, the adapters on disk?

- Seconds per token of forward_backward at 512, 4,096 and 16,384 tokens a batch: the dearest over
  the cheapest. Bar: 1.15. A long batch is an average in itself: it is measured once in five rounds.
- Tokens per second of 1, 4, 16 and 64 clients, each with a session of its own, sampling 32 tokens
  at once: each figure over the one before. Bar: 0.95, the worst step counts.
- The same small calls on a tiny model with 1 and with 1,000 adapters on disk: forward_backward of
  1x8, and a sample of 8 tokens. Bar: 1.1.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import Question, alternate, costlier, report, run_questions, summary, timed
from benchmarks._served import Served, datums, run
from benchmarks._workload import even_rows, sample_request, tokens

RANK, LENGTH = 8, 128
MOST_PER_TOKEN, OF_FEWER_CLIENTS, MANY_OVER_ONE = 1.15, 0.95, 1.1
BATCHES = (512, 4096, 16384)
"""Tokens per batch."""
CLIENTS = (1, 4, 16, 64)
ADAPTERS = 1000


def batch_size(rounds: int) -> bool:
    """Measures small batches before and after large ones, so that drift affects all alike."""
    per_token: dict[int, list[float]] = {size: [] for size in BATCHES}
    with Served() as ours:
        training = ours.training(RANK)
        data = {size: datums(even_rows(size // LENGTH, LENGTH)) for size in BATCHES}

        def call(size: int) -> float:
            return timed(lambda: training.forward_backward(data[size], "cross_entropy").result())

        call(512)
        small, *larger = BATCHES
        for size in larger:
            for _ in range(max(1, rounds // 5)):
                per_token[small] += [call(small) / small for _ in range(2)]
                per_token[size].append(call(size) / size)
        per_token[small] += [call(small) / small for _ in range(2)]
    medians = {size: statistics.median(times) for size, times in per_token.items()}
    return report(
        "seconds per token from 512 to 16,384 tokens a batch: dearest over cheapest",
        max(medians.values()) / min(medians.values()),
        at_most=MOST_PER_TOKEN,
        **{f"ms_{size}": summary([1000 * t for t in ts]) for size, ts in per_token.items()},
    )


def clients(rounds: int) -> bool:
    """Sends the same request by a growing number of clients."""
    with Served() as ours:
        path = ours.saved_adapter(RANK)
        samplers = [
            ours.new_service().create_sampling_client(model_path=path) for _ in range(max(CLIENTS))
        ]
        seeds = itertools.count(1)

        def rate(count: int) -> float:
            seed = 1000 * next(seeds)
            requests = [sample_request(tokens(32, seed + i), 32, adapter=i) for i in range(count)]
            return 32 * count / max(run(samplers, requests))

        rate(4)  # warms up
        sides = {str(count): partial(rate, count) for count in CLIENTS}
        found = alternate(sides, rounds, warmups=0)
    medians = [statistics.median(found[str(count)]) for count in CLIENTS]
    return report(
        "tokens per second by 1 to 64 clients: worst step up over the one before",
        min(b / a for a, b in pairwise(medians)),
        at_least=OF_FEWER_CLIENTS,
        **{f"clients_{count}": summary(found[str(count)]) for count in CLIENTS},
    )


@contextmanager
def tiny_server(adapters: int) -> Iterator[tuple[Any, Any]]:
    """Yields a training and a sampling client of a server that keeps so many saved adapters."""
    from tinkex.engine.convert.tiny_model import make_tiny_model

    with tempfile.TemporaryDirectory() as scratch:
        model = make_tiny_model(Path(scratch) / "model")
        with Served(model) as ours, ThreadPoolExecutor(8) as workers:
            list(workers.map(lambda n: ours.saved_adapter(RANK, seed=n), range(adapters - 1)))
            path = ours.saved_adapter(RANK)
            yield ours.training(RANK), ours.service.create_sampling_client(model_path=path)


def adapters_on_disk(rounds: int) -> bool:
    with tiny_server(1) as few, tiny_server(ADAPTERS) as many:
        met = []
        for what, call in (("forward_backward of 1x8", _train), ("sample of 8 tokens", _sample)):
            sides = {"many": partial(call, *many), "one": partial(call, *few)}
            found = alternate(sides, 8 * rounds, warmups=5)
            question = f"{what} with {ADAPTERS} adapters on disk over 1"
            met.append(costlier(question, found["many"], found["one"], at_most=MANY_OVER_ONE))
    return all(met)


def _train(training: Any, _: Any) -> float:
    data = datums([([1, 2, 3, 4, 5, 6, 7, 8, 9], [1.0] * 8)])
    return timed(lambda: training.forward_backward(data, "cross_entropy").result())


def _sample(_: Any, sampler: Any) -> float:
    return run([sampler], [sample_request([1, 2, 3, 4], 8)])[0]


QUESTIONS: dict[str, Question] = {
    "batch size": batch_size,
    "clients": clients,
    "adapters on disk": adapters_on_disk,
}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS))
