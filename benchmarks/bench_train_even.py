"""How fast is training on batches of one shape, beside the machine's roofline and beside PEFT?

A step is forward_backward and optim_step through the whole stack: official client, HTTP, store,
scheduler, engine. Every position is weighted. Bars: 0.60 of the roofline (`_roofline.py` has the
formula) and 1.2 times the speed of a Transformers + PEFT loop (`_side_peft.py`).

Shapes 8x64, 8x256 and 32x128 at ranks 8 and 32. A run without `--only` takes two of the six;
`--only "32x128 rank 8"` measures one, `--only "roofline 8x64 rank 8"` one without PEFT,
`--only "untuned 8x64 rank 8"` one beside PEFT with the allocator as it comes.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import Question, alternate, faster, report, run_questions, summary
from benchmarks._model import Sizes, model_folder
from benchmarks._roofline import training_flops
from benchmarks._served import Served, datums, step
from benchmarks._workload import even_rows
from benchmarks._yardsticks import THREADS, TUNED, GemmSide, PeftSide

OF_ROOFLINE, TIMES_PEFT = 0.60, 1.2
SHAPES = ((8, 64), (8, 256), (32, 128))
RANKS = (8, 32)

Shape = tuple[int, int]
Settings = dict[str, str]


def measure(shape: Shape, rank: int, rounds: int, peft_settings: Settings | None = TUNED) -> bool:
    """Measures our step, the rate of a matrix product and PEFT's step, if it has
    settings, in turn."""
    rows = even_rows(*shape)
    with ExitStack() as opened:
        ours, gemm = opened.enter_context(Served()), opened.enter_context(GemmSide())
        training, data = ours.training(rank), datums(rows)
        sides: dict[str, Callable[[], float]] = {
            "ours": lambda: step(training, data),
            "rate": gemm.rate,
        }
        if peft_settings is not None:
            peft = opened.enter_context(PeftSide(rank, peft_settings))
            sides["peft"] = lambda: peft.step(rows)
        found = alternate(sides, rounds)
    flops = training_flops(Sizes.read(model_folder()), rows, rank)
    is_met = share_of_roofline(case(shape, rank), flops, found["ours"], found["rate"])
    if peft_settings is not None:
        tuned = "" if peft_settings == TUNED else ", its allocator as it comes"
        question = f"train {case(shape, rank)}: speed beside PEFT{tuned}"
        is_met &= faster(question, found["ours"], found["peft"], at_least=TIMES_PEFT)
    return is_met


def share_of_roofline(name: str, flops: float, ours: list[float], rates: list[float]) -> bool:
    """Reports the time of the step's operations alone over the time of the step."""
    ideal = [flops / rate for rate in rates]
    return report(
        f"train {name}: share of roofline",
        statistics.median(ideal) / statistics.median(ours),
        at_least=OF_ROOFLINE,
        ours=summary(ours),
        roofline=summary(ideal),
        gflop=round(flops / 1e9, 1),
        gflop_per_s=summary([rate / 1e9 for rate in rates]),
    )


def case(shape: Shape, rank: int) -> str:
    return f"{shape[0]}x{shape[1]} rank {rank}"


CASES = [(shape, rank) for shape in SHAPES for rank in RANKS]
IN_SHORT = (((8, 64), 8), ((8, 256), 32))
"""Questions that a run of everything has time for; the others run by name."""
QUESTIONS: dict[str, Question] = {case(*each): partial(measure, *each) for each in IN_SHORT}
BY_NAME: dict[str, Question] = {
    **{case(*each): partial(measure, *each) for each in CASES if each not in IN_SHORT},
    **{f"roofline {case(*each)}": partial(measure, *each, peft_settings=None) for each in CASES},
    **{f"untuned {case(*each)}": partial(measure, *each, peft_settings=THREADS) for each in CASES},
}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS, by_name=BY_NAME))
