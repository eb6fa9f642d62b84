"""One program for two SDKs: the whole loop, and what was seen as one JSON object.

The same lines run with the official package and with ours; only the name of the package differs.
A process of its own, because the official client keeps threads, sockets and telemetry alive until
its process ends.

    python -m tests.support.whole_loop <tinker or tinkex> <base_url> <datums>
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

sdk = importlib.import_module(sys.argv[1])
types: Any = importlib.import_module(f"{sys.argv[1]}.types")


def main(base_url: str, num_datums: int) -> dict[str, Any]:
    """The loop: train in chunks, step, save, sample, score."""
    service = sdk.ServiceClient(base_url=base_url, api_key="tml-judge")
    seen: dict[str, Any] = {
        "models": [m.model_name for m in service.get_server_capabilities().supported_models]
    }
    training = service.create_lora_training_client(base_model="tiny/model", rank=8)
    seen["model_id"] = training.model_id
    data = [_datum(3 + number % 5) for number in range(num_datums)]
    first = training.forward_backward(data, "cross_entropy")
    step = training.optim_step(types.AdamParams(learning_rate=0.5))
    seen["metrics"] = first.result().metrics
    seen["num_outputs"] = len(first.result().loss_fn_outputs)
    seen["first_logprobs"] = first.result().loss_fn_outputs[0]["logprobs"].data
    seen["step_metrics"] = step.result().metrics
    seen["after_step"] = training.forward(data[:1], "cross_entropy").result().metrics["loss:sum"]
    seen["state_path"] = training.save_state("state-1").result().path
    seen["sampler_path"] = training.save_weights_for_sampler("sampler-1").result().path
    seen["info_rank"] = training.get_info().lora_rank
    seen["custom_loss"] = training.forward_backward_custom(data[:2], _custom).result().metrics
    uploaded = service.create_custom_loss(_per_datum, {"logprobs": 1, "weights": 1}).result()
    seen["uploaded_loss"] = training.forward_backward_custom(data[:2], uploaded).result().metrics
    _sampling(service, training, seen)
    service.close("success").result()
    return seen


def _sampling(service: Any, training: Any, seen: dict[str, Any]) -> None:
    prompt = types.ModelInput.from_ints([1, 2, 3])
    params = types.SamplingParams(max_tokens=4, seed=5)
    base = service.create_sampling_client(base_model="tiny/model")
    many = base.sample(
        prompt, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=2
    ).result()
    seen["tokens"] = [list(sequence.tokens) for sequence in many.sequences]
    seen["logprobs"] = [list(sequence.logprobs) for sequence in many.sequences]
    seen["topk_prompt"] = [list(map(list, row or ())) for row in many.topk_prompt_logprobs]
    seen["prompt_logprobs"] = base.compute_logprobs(prompt).result()
    named = service.create_sampling_client(model_path=seen["sampler_path"])
    seen["named_logprobs"] = named.compute_logprobs(prompt).result()
    ephemeral = training.save_weights_and_get_sampling_client()
    seen["ephemeral_logprobs"] = ephemeral.compute_logprobs(prompt).result()


def _datum(length: int) -> Any:
    targets = list(range(1, length + 1))
    return types.Datum(
        model_input=types.ModelInput.from_ints(targets),
        loss_fn_inputs={"target_tokens": targets, "weights": [0.5] * length},
    )


def _custom(data: Any, logprobs: Any) -> Any:
    return sum((lp**2).sum() for lp in logprobs), {"custom/pairs:sum": float(len(data))}


def _per_datum(logprobs: Any, weights: Any) -> Any:
    return -(logprobs * weights).sum(), {"custom/weight:sum": weights.sum()}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[2], int(sys.argv[3]))))
