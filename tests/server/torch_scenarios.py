"""What only a real engine can show, through the official client on a tiny random model.

python -m tests.server.torch_scenarios <base_url> <api_key>
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import tinker
from tinker import types

MODEL = "tiny"
IDS = [5, 9, 33, 71, 12, 90, 41, 8]


def main(base_url: str, api_key: str) -> dict[str, Any]:
    """Everything seen, for the test to judge."""
    service = tinker.ServiceClient(base_url=base_url, api_key=api_key)
    training = service.create_lora_training_client(MODEL, rank=8, seed=3)
    base = service.create_sampling_client(base_model=MODEL)
    seen: dict[str, Any] = {
        "start": _trainer_scores(training),
        "base": _sampler_scores(base),
    }
    early = training.save_weights_and_get_sampling_client()
    seen["losses"] = [_step(training) for _ in range(6)]
    late = training.save_weights_and_get_sampling_client()
    seen |= {
        "early_after": _sampler_scores(early),
        "late": _sampler_scores(late),
        "trainer": _trainer_scores(training),
    }
    path = training.save_state("state").result().path
    resumed = service.create_training_client_from_state_with_optimizer(path)
    seen["next"] = _step(training), _step(training)
    seen["resumed"] = _step(resumed), _step(resumed)
    named = service.create_sampling_client(
        model_path=resumed.save_weights_for_sampler("s").result().path
    )
    seen["named"] = _sampler_scores(named)
    seen["resumed_scores"] = _trainer_scores(resumed)
    seen |= _sampling(late)
    external = training.save_weights_external("export").result().path
    rest = tinker.RestClient(base_url=base_url, api_key=api_key)
    seen["files"] = sorted(rest.get_external_weights_urls(external).result().urls)
    tokenizer = training.get_tokenizer()
    seen["text"] = tokenizer.decode(tokenizer.encode("hello"))
    service.close("success").result()
    return seen


def _datum(ids: list[int] = IDS) -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
    )


def _step(training: tinker.TrainingClient) -> float:
    forward = training.forward_backward([_datum(), _datum(IDS[::-1])], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=5e-3)).result()
    return forward.result().metrics["loss:sum"]


def _trainer_scores(training: tinker.TrainingClient) -> list[float]:
    result = training.forward([_datum()], "cross_entropy").result()
    return list(result.loss_fn_outputs[0]["logprobs"].data)


def _sampler_scores(sampler: tinker.SamplingClient) -> list[float]:
    scores = sampler.compute_logprobs(types.ModelInput.from_ints(IDS)).result()
    return [score for score in scores[1:] if score is not None]


def _sampling(sampler: tinker.SamplingClient) -> dict[str, Any]:
    prompt = types.ModelInput.from_ints(IDS[:3])
    params = types.SamplingParams(max_tokens=12, seed=11, stop=[])
    answers = [sampler.sample(prompt, 2, params).result() for _ in range(2)]
    first = answers[0].sequences[0]
    scored = sampler.compute_logprobs(
        types.ModelInput.from_ints(IDS[:3] + list(first.tokens))
    ).result()
    stop = int(first.tokens[4])
    stopped = sampler.sample(
        prompt, 1, types.SamplingParams(max_tokens=12, seed=11, stop=[stop])
    ).result()
    return {
        "samples": [[list(s.tokens) for s in answer.sequences] for answer in answers],
        "sampled_logprobs": list(first.logprobs or []),
        "scored_logprobs": scored[3:],
        "stopped": list(stopped.sequences[0].tokens),
        "stop": stop,
        "stop_reason": stopped.sequences[0].stop_reason,
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
    os._exit(0)  # the client's own threads sometimes abort an orderly end
