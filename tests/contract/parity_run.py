"""The same loop through whichever client is named: `parity_run.py tinker|tinkex MODEL`.

Prints one JSON object. Both clients have the same names, so there is one program; copy it and put
your own loop in. The address and the key come from TINKER_BASE_URL and TINKER_API_KEY.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

STEPS, RANK, SEED, MAX_TOKENS = 3, 8, 7, 12
TOKENS = [(11 * at * at + 5 * at + 3) % 200 + 20 for at in range(24)]


def run(client: Any, model: str) -> dict[str, Any]:
    """Trains, samples and scores with a fixed model, prompt, seed and parameters."""
    types = client.types
    service = client.ServiceClient()
    training = service.create_lora_training_client(base_model=model, rank=RANK, seed=SEED)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={
            "target_tokens": TOKENS[1:],
            "weights": [0.0] * 5 + [1.0] * (len(TOKENS) - 6),
        },
    )
    losses, logprobs = [], []
    for _ in range(STEPS):
        scored = training.forward_backward([datum], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-3)).result()
        result = scored.result()
        losses.append(result.metrics["loss:sum"])
        logprobs.append(list(result.loss_fn_outputs[0]["logprobs"].data))
    sampler = training.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints(TOKENS[:8])
    answers = {}
    for name, temperature in (("greedy", 0.0), ("seeded", 1.0)):
        params = types.SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=SEED)
        sequence = sampler.sample(prompt, 1, params).result().sequences[0]
        answers[name] = {
            "tokens": list(sequence.tokens),
            "logprobs": [float(value) for value in sequence.logprobs or []],
        }
    scores = sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()
    return {
        "losses": losses,
        "logprobs": logprobs,
        "answers": answers,
        "prompt_logprobs": list(scores)[1:],
    }


if __name__ == "__main__":
    print(json.dumps(run(importlib.import_module(sys.argv[1]), sys.argv[2])), flush=True)
