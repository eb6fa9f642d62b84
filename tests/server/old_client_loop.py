"""The whole loop as an older official client runs it; a program of its own, in that client's venv.

python old_client_loop.py <base_url> <api_key>
"""

import json
import os
import sys

import tinker
from tinker import types


def main(base_url, api_key):
    """What the client saw."""
    service = tinker.ServiceClient(base_url=base_url, api_key=api_key)
    training = service.create_lora_training_client("null", rank=8)
    forward = training.forward_backward([_datum() for _ in range(1030)], "cross_entropy")
    step = training.optim_step(types.AdamParams(learning_rate=1e-3))
    seen = {
        "version": tinker.__version__,
        "num_outputs": len(forward.result(timeout=60).loss_fn_outputs),
        "grad_norm": step.result(timeout=60).metrics["grad_norm"],
        "loss": _loss(training),
    }
    sampler = training.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints([1, 2, 3])
    answer = sampler.sample(
        prompt, 2, types.SamplingParams(max_tokens=4), include_prompt_logprobs=True
    ).result(timeout=60)
    seen["sequences"] = len(answer.sequences)
    seen["prompt_logprobs"] = len(answer.prompt_logprobs)
    seen["scores"] = sampler.compute_logprobs(prompt).result(timeout=60)
    path = training.save_state("state").result(timeout=60).path
    seen["resumed"] = _loss(service.create_training_client_from_state(path))
    training.save_weights_for_sampler("sampler").result(timeout=60)
    rest = service.create_rest_client()
    seen["runs"] = len(rest.list_training_runs().result().training_runs)
    return seen


def _datum():
    return types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
    )


def _loss(training):
    return training.forward([_datum()], "cross_entropy").result(timeout=60).metrics["loss:sum"]


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
    os._exit(0)  # not waiting for the client's threads
