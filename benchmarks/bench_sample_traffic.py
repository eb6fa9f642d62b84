"""How does sampling hold up under traffic, beside `generate` and beside vLLM with LoRA?

Requests arrive at 12.8 a second, prompts of 16 to 400 tokens, answers of 8 to 128, over four
adapters of rank 8; far more than two cores can serve, so the time until all are answered is a
measure of throughput, and the sum of all waiting a measure of order. Each round is a slice of 16
requests, the sides in turn. Bar: half the time of the better of `generate` (batches of one adapter
in order of arrival) and vLLM. That is vLLM (36 s a slice where `generate` takes 60), so a run
without `--only` leaves `generate` out.

Then the time to the first token. The protocol returns a sample whole, so only a request for one
token can measure it: the latency of such requests amid all 256 of the traffic, two a second with
prompts like its own, over their latency on an idle server. Bar: 2 at the median. The rest of the
traffic is cancelled when all of them are answered.

By name: "both" has `generate` and vLLM, "whole" all 256 requests over 20 s in one go, "whole vLLM"
that without `generate`, "light" the first token amid traffic the server can keep up with,
"generate alone" that side beside ours.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._kept import kept
from benchmarks._measure import Question, alternate, report, run_questions, summary
from benchmarks._model import model_folder
from benchmarks._served import Served, run
from benchmarks._workload import Request, sample_request, tokens, traffic
from benchmarks._yardsticks import GenerateSide, VllmSide

TIMES_BEST, TIMES_IDLE = 2.0, 2.0
PER_SECOND, SLICE, WHOLE = 12.8, 16, 256
LIGHT_PER_SECOND, LIGHT_PROBE_EVERY_S = 0.3, 2.0
PROBE_EVERY_S = 0.5
ADAPTERS, RANK = 4, 8
PROBES = 38  # over the 20 s in which the traffic comes
DRAIN_S = 2.0  # until the server has nothing to do any more
ROUNDS = 3

Run = Callable[[list[Request]], list[float]]


@contextmanager
def our_side() -> Iterator[tuple[list[Any], tuple[Path, ...]]]:
    """Returns samplers of our server, and the folders of their adapters."""
    with Served() as ours:
        yield ours.adapters(ADAPTERS, RANK)


def throughput(names: tuple[str, ...], count: int, rounds: int) -> bool:
    """Sends the same arrivals to every side, in turn."""
    samplers, folders = kept.get(our_side)
    runs: dict[str, Run] = {"ours": partial(run, samplers)}
    if "generate" in names:
        runs["generate"] = kept.get(GenerateSide, folders).run
    if "vLLM" in names:
        runs["vLLM"] = kept.get(VllmSide, model_folder(), folders).run
    for each in runs.values():
        each([sample_request(tokens(100, i), 8, adapter=i) for i in range(ADAPTERS)])
    waits: dict[str, list[float]] = {name: [] for name in runs}

    def timed(name: str, seeds: Iterator[int]) -> float:
        requests = traffic(count, PER_SECOND, ADAPTERS, seed=next(seeds))
        ends = runs[name](requests)
        waits[name].append(sum(e - r["at"] for e, r in zip(ends, requests, strict=True)))
        return max(ends)

    sides = {name: partial(timed, name, itertools.count(1)) for name in runs}
    totals = alternate(sides, rounds, warmups=0)
    best = min(names, key=lambda name: statistics.median(totals[name]))
    return report(
        f"traffic of {count} requests at {PER_SECOND}/s: speed beside {best}",
        statistics.median(totals[best]) / statistics.median(totals["ours"]),
        at_least=TIMES_BEST,
        **{name: summary(values) for name, values in totals.items()},
        waiting={name: summary(values) for name, values in waits.items()},
        waiting_ratio=round(
            min(statistics.median(waits[n]) for n in names) / statistics.median(waits["ours"]), 3
        ),
    )


def first_token(per_second: float, every_s: float, rounds: int) -> bool:
    """Times requests for one token on an idle server and amid traffic; prompts as
    traffic has them."""
    samplers, _ = kept.get(our_side)
    idle, busy = [], []
    for turn in range(max(1, rounds // ROUNDS)):
        idle += [_latency(samplers, probe) for probe in _probes(2 * turn)]
        busy += _amid_traffic(samplers, _probes(2 * turn + 1), per_second, every_s, 50 + turn)
        time.sleep(DRAIN_S)
    return report(
        f"first token amid {per_second} requests/s over an idle server's, median",
        statistics.median(busy) / statistics.median(idle),
        at_most=TIMES_IDLE,
        busy=summary(busy),
        idle=summary(idle),
    )


def _probes(seed: int) -> list[Request]:
    """Returns prompts of fixed lengths with new tokens, so that none is cached."""
    lengths = [len(request["tokens"]) for request in traffic(PROBES, 1.0, ADAPTERS, seed=7)]
    return [
        sample_request(tokens(length, 10_000 + 100 * seed + i), 1, adapter=i % ADAPTERS)
        for i, length in enumerate(lengths)
    ]


def _latency(samplers: list[Any], probe: Request) -> float:
    return run(samplers, [probe])[0]


def _amid_traffic(
    samplers: list[Any], probes: list[Request], per_second: float, every_s: float, seed: int
) -> list[float]:
    """Returns the latencies of probes sent at intervals while the traffic arrives."""
    span = every_s * (len(probes) + 2)
    arriving = traffic(round(per_second * span), per_second, ADAPTERS, seed=seed)
    timed = [{**probe, "at": every_s * (i + 2)} for i, probe in enumerate(probes)]
    everything = sorted(arriving + timed, key=lambda request: request["at"])
    places = [i for i, each in enumerate(everything) if any(each is probe for probe in timed)]
    ends = run(samplers, everything, wanted=places)
    return [ends[i] - everything[i]["at"] for i in places]


QUESTIONS: dict[str, Question] = {
    "throughput": partial(throughput, ("vLLM",), SLICE),
    "first token": partial(first_token, PER_SECOND, PROBE_EVERY_S),
}
BY_NAME: dict[str, Question] = {
    "both": partial(throughput, ("generate", "vLLM"), SLICE),
    "generate alone": partial(throughput, ("generate",), SLICE),
    "whole": partial(throughput, ("generate", "vLLM"), WHOLE),
    "whole vLLM": partial(throughput, ("vLLM",), WHOLE),
    "light": partial(first_token, LIGHT_PER_SECOND, LIGHT_PROBE_EVERY_S),
}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS, rounds=ROUNDS, by_name=BY_NAME))
