"""What a client sees that trains with losses of its own, printed as JSON.

    python -m tests.server.custom_loss_run <tinkex|tinker> <base_url> <api_key> <model>

Both clients run it: one asks for an upload, the other is the official one.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
from typing import Any

import torch

IDS = [5, 9, 33, 71, 12, 90, 41, 8]
LENGTH = len(IDS) - 1


def clipped(logprobs: Any, old: Any, advantages: Any) -> Any:
    ratio = torch.exp(logprobs - old)
    worst = torch.minimum(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages)
    share = ((ratio < 0.8) | (ratio > 1.2)).float()
    loss = -worst.sum() / math.sqrt(logprobs.shape[0])
    return loss, {"custom/clipped:mean": share.mean(), "custom/ratio:sum": ratio.sum()}


def focal(logprobs: Any, weights: Any, gamma: Any) -> Any:
    return -(weights * (1 - logprobs.exp()) ** gamma * logprobs).sum(), {}


def distilled(logprobs: Any, shares: Any) -> Any:
    return -(shares * logprobs).sum(), {}


def outside(logprobs: Any) -> Any:
    return torch.fft.rfft(logprobs).abs().sum(), {}


CASES = [
    (clipped, {"logprobs": 1, "old": 1, "advantages": 1}),
    (focal, {"logprobs": 1, "weights": 1, "gamma": 0}),
    (distilled, {"logprobs": 2, "shares": 2}),
]


def batch(types: Any, fn: Any) -> list[Any]:
    """Three datums that bring what the loss takes."""

    def floats(values: list[float], *shape: int) -> Any:
        return types.TensorData(data=values, dtype="float32", shape=list(shape))

    def datum(first: int) -> Any:
        ids = IDS[first:] + IDS[:first]
        ramp = [(first + place) / LENGTH - 0.5 for place in range(LENGTH)]
        if fn is clipped:
            inputs = {"old": floats([-5.5 + each for each in ramp], LENGTH)}
            inputs["advantages"] = floats(ramp, LENGTH)
        elif fn is focal:
            inputs = {"weights": floats([abs(each) for each in ramp], LENGTH)}
            inputs["gamma"] = floats([1.5 + first])
        else:
            inputs = {"shares": floats([0.25, 0.75] * LENGTH, LENGTH, 2)}
        targets = ids[1:]
        if fn is distilled:
            pairs = [token for each in targets for token in (each, each + 1)]
            targets = types.TensorData(data=pairs, dtype="int64", shape=[LENGTH, 2])
            inputs["weights"] = floats([0.0] * 2 * LENGTH, LENGTH, 2)
        return types.Datum(
            model_input=types.ModelInput.from_ints(ids[:-1]),
            loss_fn_inputs={"target_tokens": targets, **inputs},
        )

    return [datum(first) for first in range(3)]


def steps(training: Any, types: Any, handles: Any, num_steps: int = 1) -> list[Any]:
    """Metrics of the passes and of the optimizer's steps."""
    seen = []
    for _ in range(num_steps):
        for fn, handle in handles:
            passes = training.forward_backward_custom(batch(types, fn), handle).result()
            step = training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
            seen.append([passes.metrics, step.metrics])
    return seen


def main(module: str, base_url: str, api_key: str, model: str) -> dict[str, Any]:
    client = importlib.import_module(module)
    service = client.ServiceClient(base_url=base_url, api_key=api_key)
    training = service.create_lora_training_client(model, rank=4, seed=1)
    handles = [(fn, service.create_custom_loss(fn, ranks).result()) for fn, ranks in CASES]
    seen: dict[str, Any] = {"ids": [handle.loss_id for _, handle in handles]}
    seen["steps"] = steps(training, client.types, handles)
    try:
        outside_handle = service.create_custom_loss(outside, {"logprobs": 1}).result()
        seen["refusal"] = f"runs here: {outside_handle.loss_id}"
    except Exception as error:  # the test judges it
        seen["refusal"] = f"{type(error).__name__}: {error}"
    service.close("success").result()
    return seen


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
    os._exit(0)  # the official client's own threads sometimes abort an orderly end
