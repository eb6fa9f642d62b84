"""A training run of the official client that says how far it is, so that a test can disturb it.

    python -m tests.server.official_run <base_url> <api_key> <steps> <model>

Prints one line `step <n>` per finished step and at the end a JSON object of all it saw. The
client is used with its default settings; any exception ends the program.
"""

from __future__ import annotations

import json
import os
import sys

import tinker
from tinker import types

PROMPT = types.ModelInput.from_ints([1, 2, 3])


def main(base_url: str, api_key: str, steps: int, model: str) -> dict[str, object]:
    """What the run saw."""
    service = tinker.ServiceClient(base_url=base_url, api_key=api_key)
    training = service.create_lora_training_client(model, rank=4, seed=7)
    early = training.save_weights_and_get_sampling_client()
    early_scores = early.compute_logprobs(PROMPT).result()
    losses, norms = [], []
    for step in range(steps):
        forward = training.forward_backward([_datum(step + n) for n in range(3)], "cross_entropy")
        update = training.optim_step(types.AdamParams(learning_rate=1e-3))
        losses.append(forward.result().metrics["loss:sum"])
        norms.append((update.result().metrics or {})["grad_norm"])
        print(f"step {step}", flush=True)
    late = training.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=4, seed=1)
    return {
        "losses": losses,
        "norms": norms,
        "is_early_unchanged": early.compute_logprobs(PROMPT).result() == early_scores,
        "late_scores": late.compute_logprobs(PROMPT).result(),
        "tokens": list(late.sample(PROMPT, 1, params).result().sequences[0].tokens),
        "path": training.save_state("end").result().path,
    }


def _datum(number: int) -> types.Datum:
    ids = [1 + (number * 7 + i) % 100 for i in range(6)]
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * 5},
    )


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])), flush=True)
    os._exit(0)  # the client's own threads sometimes abort an orderly end
