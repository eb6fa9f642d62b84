"""A training run with several operations under way at any time, by the official client or ours.

    python -m tests.faults.takeover_run <tinker or tinkex> <base_url> <api_key> <steps> <model>

Prints a line `step <n>` per finished step and at the end a JSON object of all it saw. The client is
used with its default settings; any exception ends the program.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import deque
from typing import Any

AHEAD = 3  # steps that are sent before the first of them is waited for


def main(package: str, base_url: str, api_key: str, steps: int, model: str) -> dict[str, object]:
    """What the run saw."""
    client: Any = importlib.import_module(package)
    types = importlib.import_module(f"{package}.types")
    service = client.ServiceClient(base_url=base_url, api_key=api_key)
    training = service.create_lora_training_client(model, rank=4, seed=7)
    losses: list[float] = []
    norms: list[float] = []
    sent: deque[tuple[Any, Any]] = deque()
    for step in range(steps + AHEAD):
        if step < steps:
            data = [_datum(types, step + n) for n in range(3)]
            forward = training.forward_backward(data, "cross_entropy")
            sent.append((forward, training.optim_step(types.AdamParams(learning_rate=1e-3))))
        if step >= AHEAD:
            forward, update = sent.popleft()
            losses.append(forward.result().metrics["loss:sum"])
            norms.append(update.result().metrics["grad_norm"])
            print(f"step {step - AHEAD}", flush=True)
    sampler = training.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints([1, 2, 3])
    params = types.SamplingParams(max_tokens=4, seed=1)
    return {
        "losses": losses,
        "norms": norms,
        "scores": sampler.compute_logprobs(prompt).result(),
        "tokens": list(sampler.sample(prompt, 1, params).result().sequences[0].tokens),
        "saved": training.save_state("end").result().path.rpartition("/")[2],
    }


def _datum(types: Any, number: int) -> Any:
    ids = [1 + (number * 7 + i) % 100 for i in range(6)]
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * 5},
    )


if __name__ == "__main__":
    package, base_url, api_key, steps, model = sys.argv[1:]
    print(json.dumps(main(package, base_url, api_key, int(steps), model)), flush=True)
    os._exit(0)  # the client's own threads sometimes abort an orderly end
