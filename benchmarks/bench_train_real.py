"""How fast is training on conversations as they come, beside PEFT?

64 conversations of 20 to 500 tokens in the order they were drawn, the loss on one token in four
(the last quarter: the answer), rank 8; a training step takes 8 of them, so a pass is 8 steps. Both
sides take the same steps in turn, ours through the whole stack, theirs padded on the right to the
longest of the 8 (`_side_peft.py`). Bar: 1.8 times the speed over the pass.

A run takes the first 5 steps; `--rounds 8` is the whole pass. By name only: "unpadded" has PEFT
compute one conversation at a time, which pads nothing; "whole" sends all 64 in one step.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import alternate, paired, report, run_questions, summary
from benchmarks._served import Served, datums, step
from benchmarks._workload import conversations
from benchmarks._yardsticks import PeftSide

TIMES_PEFT = 1.8
COUNT, EACH, RANK = 64, 8, 8


def measure(rounds: int, *, each: int = EACH, microbatch: int = EACH) -> bool:
    """Measures steps over the conversations, ours and PEFT's in turn."""
    rows = conversations(COUNT)
    batches = [rows[i : i + each] for i in range(0, COUNT, each)][:rounds]
    with Served() as ours, PeftSide(RANK) as peft:
        training = ours.training(RANK)
        order = [batches[0][:2], *batches]  # a short one to warm up
        our_turn, peft_turn = iter(order), iter(order)
        sides = {
            "ours": lambda: step(training, datums(next(our_turn))),
            "peft": lambda: peft.step(next(peft_turn), microbatch),
        }
        found = alternate(sides, len(batches))
    ratio = sum(found["peft"]) / sum(found["ours"])
    tokens = [len(weights) for batch in batches for _, weights in batch]
    return report(
        f"train {len(tokens)} conversations, {microbatch} of PEFT's at a time: speed beside PEFT",
        ratio,
        at_least=TIMES_PEFT,
        ours=summary(found["ours"]),
        theirs=summary(found["peft"]),
        paired=paired(found["peft"], found["ours"]),
        tokens=sum(tokens),
    )


QUESTIONS = {"conversations": measure}
BY_NAME = {
    "unpadded": partial(measure, microbatch=1),
    "whole": partial(measure, each=COUNT),
}

if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS, rounds=5, by_name=BY_NAME))
