"""Three official clients at once: large batches in chunks, snapshots, samples in flight, saves.

    python -m tests.server.chaos_client <base_url> <api_key> <steps>

Prints a line per step and at the end a JSON list of what each client saw. Default settings; any
exception makes the program fail.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tinker
from tinker import types

PROMPT = types.ModelInput.from_ints([1, 2, 3])


def run(base_url: str, api_key: str, steps: int, number: int) -> list[Any]:
    """What one client saw."""
    service = tinker.ServiceClient(base_url=base_url, api_key=api_key)
    training = service.create_lora_training_client("null", rank=4, seed=number)
    seen: list[Any] = []
    for step in range(steps):
        data = [_datum(step + n) for n in range(1100 if step % 4 == 0 else 3)]
        forward = training.forward_backward(data, "cross_entropy")
        update = training.optim_step(types.AdamParams(learning_rate=1e-3))
        sampler = training.save_weights_and_get_sampling_client()
        params = [types.SamplingParams(max_tokens=3, seed=seed) for seed in range(5)]
        answers = [sampler.sample(PROMPT, 1, each) for each in params]
        seen.append(
            {
                "loss": forward.result().metrics["loss:sum"],
                "norm": (update.result().metrics or {})["grad_norm"],
                "tokens": [list(each.result().sequences[0].tokens) for each in answers],
            }
        )
        if step % 3 == 2:
            seen.append(training.save_state(f"step-{step}").result().path.rpartition("/")[2])
        print(f"step {number} {step}", flush=True)
    return seen


def _datum(number: int) -> types.Datum:
    ids = [1 + (number * 7 + i) % 100 for i in range(6)]
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * 5},
    )


if __name__ == "__main__":
    with ThreadPoolExecutor(3) as pool:
        runs = [
            pool.submit(run, sys.argv[1], sys.argv[2], int(sys.argv[3]), number)
            for number in range(3)
        ]
        outcome = [each.result() for each in runs]
    print(json.dumps(outcome), flush=True)
    os._exit(0)  # the client's own threads sometimes abort an orderly end
