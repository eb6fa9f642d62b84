"""Do many tenants, new shapes and new adapters cost more than one tenant doing the same again?

- The same tokens by 8 adapters as by one, training (8x64) and sampling (16 prompts, 32 tokens), all
  requests sent at once. Bar: 1.25 times the time.
- The first call of a shape the server has not seen over the median of the next ones, training and
  sampling. Bar: 1.2 at the median over shapes.
- A new adapter: from its creation request until its first forward_backward is answered, less the
  time such a call takes anyway. Bar: 0.1 s.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._kept import kept
from benchmarks._measure import alternate, costlier, report, run_questions, summary, timed
from benchmarks._served import Served, datums, run
from benchmarks._workload import Request, even_rows, sample_request, tokens

TENANTS, RANK = 8, 8
TIMES_ONE, TIMES_SEEN, NEW_S = 1.25, 1.2, 0.1
TRAIN_SHAPES = ((3, 77), (5, 41), (2, 133), (7, 29), (4, 99))
SAMPLE_SHAPES = ((3, 50, 20), (5, 23, 17), (2, 91, 24), (7, 37, 15), (4, 65, 19))
"""Number of prompts, tokens of a prompt, tokens of an answer."""


@contextmanager
def tenants() -> Iterator[tuple[Served, list[Any], list[Any]]]:
    """Yields a server with eight adapters: clients to train them and to sample from them."""
    with Served() as ours:
        samplers, _ = ours.adapters(TENANTS, RANK)
        yield ours, [ours.training(RANK, seed=n) for n in range(TENANTS)], samplers


def training(rounds: int) -> bool:
    _, clients, _ = kept.get(tenants)
    batches = [datums(even_rows(1, 64, seed=n)) for n in range(TENANTS)]
    together = [datum for batch in batches for datum in batch]
    sides = {
        "eight": lambda: timed(lambda: _step_all(zip(clients, batches, strict=True))),
        "one": lambda: timed(lambda: _step_all([(clients[0], together)])),
    }
    found = alternate(sides, rounds)
    question = "training 8x64: eight adapters over one"
    return costlier(question, found["eight"], found["one"], at_most=TIMES_ONE)


def _step_all(work: Any) -> None:
    from tinker import types

    sent = [
        handle
        for client, data in work
        for handle in (
            client.forward_backward(data, "cross_entropy"),
            client.optim_step(types.AdamParams(learning_rate=1e-4)),
        )
    ]
    for handle in sent:
        handle.result()


def sampling(rounds: int) -> bool:
    _, _, samplers = kept.get(tenants)
    seeds = itertools.count(1)

    def burst(adapters: int) -> float:
        seed = 1000 * next(seeds)
        requests = [
            sample_request(tokens(32, seed + i), 32, adapter=i % adapters)
            for i in range(2 * TENANTS)
        ]
        return max(run(samplers, requests))

    found = alternate({"eight": lambda: burst(TENANTS), "one": lambda: burst(1)}, rounds)
    question = "sampling 16 prompts x32: eight adapters over one"
    return costlier(question, found["eight"], found["one"], at_most=TIMES_ONE)


def new_train_shape(rounds: int) -> bool:
    _, clients, _ = kept.get(tenants)

    def call(shape: tuple[int, ...]) -> float:
        data = datums(even_rows(*shape))
        return timed(lambda: clients[0].forward_backward(data, "cross_entropy").result())

    call((6, 53))
    return _first_over_next("training", TRAIN_SHAPES, call, rounds)


def new_sample_shape(rounds: int) -> bool:
    _, _, samplers = kept.get(tenants)
    seeds = itertools.count(1)

    def call(shape: tuple[int, ...]) -> float:
        return max(run(samplers, _burst(shape, 1000 * next(seeds))))

    call((6, 53, 18))
    return _first_over_next("sampling", SAMPLE_SHAPES, call, rounds)


def _burst(shape: tuple[int, ...], seed: int) -> list[Request]:
    count, length, answer = shape
    return [sample_request(tokens(length, seed + i), answer) for i in range(count)]


def _first_over_next(
    what: str,
    shapes: Sequence[tuple[int, ...]],
    call: Callable[[tuple[int, ...]], float],
    rounds: int,
) -> bool:
    """Times every shape for the first time, then several times again, fewer since they are five."""
    first = [call(shape) for shape in shapes]
    again = [[call(shape) for shape in shapes] for _ in range(max(1, rounds - 2))]
    later = [statistics.median(times) for times in zip(*again, strict=True)]
    question = f"{what}: first call of a new shape over the next ones"
    ratios = [a / b for a, b in zip(first, later, strict=True)]
    return report(
        question,
        statistics.median(ratios),
        at_most=TIMES_SEEN,
        first=summary(first),
        later=summary(later),
        ratios=summary(ratios),
    )


def new_adapter(rounds: int) -> bool:
    ours, clients, _ = kept.get(tenants)
    data = datums(even_rows(1, 8))

    def call(client: Any) -> None:
        client.forward_backward(data, "cross_entropy").result()

    sides = {
        "new": lambda: timed(lambda: call(ours.training(RANK))),
        "known": lambda: timed(lambda: call(clients[0])),
    }
    found = alternate(sides, 2 * rounds)
    over = [new - known for new, known in zip(found["new"], found["known"], strict=True)]
    question = "a new adapter: seconds until it has answered, beyond a known one's"
    return report(question, statistics.median(over), at_most=NEW_S, seconds=summary(over))


QUESTIONS = {
    "training": training,
    "sampling": sampling,
    "new train shape": new_train_shape,
    "new sample shape": new_sample_shape,
    "new adapter": new_adapter,
}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS))
