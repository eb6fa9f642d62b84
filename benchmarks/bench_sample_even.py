"""How fast is sampling, beside Transformers' `generate` and beside vLLM with LoRA?

One adapter of rank 8: one sample of 64 tokens, 16 samples of a prompt, 64 prompts at once. Prompts
have 32 tokens and are new every round, so that no side can remember them; temperature 1, no stop.
Ours goes through the whole stack and answers logprobs; the others run in their own process without
HTTP or logprobs. `generate` has the adapter merged into its weights; vLLM has it as an adapter, as
a server of adapters must. Bars: 1.2 times `generate`, 1.0 times vLLM.

`--only "generate 1x64"` has one side only. "vLLM-merged 1x64" is vLLM as it would be run for
this one adapter alone: merged into the weights too, and compiled.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._kept import kept
from benchmarks._measure import ROOT, Question, alternate, faster, run_questions
from benchmarks._model import model_folder
from benchmarks._served import Served, run
from benchmarks._workload import Request, sample_request, tokens
from benchmarks._yardsticks import GenerateSide, VllmSide

BARS = {"generate": 1.2, "vLLM": 1.0, "vLLM-merged": 1.0}
PROMPT, RANK = 32, 8
CASES = {"1x64": (1, 1, 64), "16 samples x64": (1, 16, 64), "64 prompts x32": (64, 1, 32)}
"""Number of prompts, samples of each, tokens of a sample."""

Run = Callable[[list[Request]], list[float]]

_warm: set[str] = set()  # sides that are warm


@contextmanager
def our_side() -> Iterator[tuple[Run, Path]]:
    """Returns a function that samples through the stack, and the folder of its adapter."""
    with Served() as ours:
        samplers, folders = ours.adapters(1, RANK)
        yield partial(run, samplers), folders[0]


def generate() -> GenerateSide:
    return kept.get(GenerateSide, (kept.get(our_side)[1],))


@contextmanager
def vllm(is_merged: bool) -> Iterator[VllmSide]:
    """Returns vLLM with the adapter, or with the adapter merged into its weights."""
    model, adapters = model_folder(), (kept.get(our_side)[1],)
    if is_merged:
        # Always this folder: what vLLM compiles is kept by path.
        model, adapters = ROOT / ".bench" / "merged", ()
        generate().save_merged(model)
    with VllmSide(model, adapters) as side:
        yield side


def measure(case: str, names: tuple[str, ...], rounds: int) -> bool:
    """Measures all sides in turn, each on prompts of its own, after a warm-up."""
    runs: dict[str, Run] = {"ours": kept.get(our_side)[0]}
    if "generate" in names:
        runs["generate"] = generate().run
    for name in {"vLLM", "vLLM-merged"} & set(names):
        runs[name] = kept.get(vllm, name == "vLLM-merged").run
    seeds = itertools.count(1)

    def timed(each: Run) -> float:
        return max(each(burst(case, next(seeds))))

    for name in runs.keys() - _warm:
        runs[name](burst("1x64", 0))
    _warm.update(runs)
    sides = {name: partial(timed, each) for name, each in runs.items()}
    found = alternate(sides, rounds, warmups=0)
    met = [
        faster(f"sample {case}: speed beside {n}", found["ours"], found[n], at_least=BARS[n])
        for n in names
    ]
    return all(met)


def burst(case: str, seed: int) -> list[Request]:
    """Returns the requests of a case, all sent at once."""
    prompts, samples, length = CASES[case]
    return [
        sample_request(tokens(PROMPT, 1000 * seed + i), length, samples) for i in range(prompts)
    ]


QUESTIONS: dict[str, Question] = {
    case: partial(measure, case, ("generate", "vLLM")) for case in CASES
}
APART: dict[str, Question] = {
    f"{name} {case}": partial(measure, case, (name,)) for name in BARS for case in CASES
}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS, by_name=APART))
