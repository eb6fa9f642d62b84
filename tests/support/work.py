"""What the loopback service computes: losses, samples and their wire form."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

from tests.support.answers import as_protobuf
from tests.support.http_server import Response
from tests.support.numbers import logprob, sampled_tokens, top_tokens
from tests.support.state import Model, Sampler
from tinkex import types
from tinkex.wire import protobuf


def forward_backward(model: Model, request: Any) -> tuple[Response, dict[str, Any]]:
    """The answer to one chunk, and what the history keeps of it."""
    outputs, losses, lengths = [], [], []
    for datum in request.data:
        targets = datum.loss_fn_inputs["target_tokens"]
        tokens = _flat(targets.tolist())
        logprobs = [logprob(token, model.step) for token in tokens]
        shape = list(targets.shape) if targets.shape else [len(tokens)]
        outputs.append({"logprobs": types.TensorData(logprobs, "float32", shape)})
        losses.append(_loss(datum, logprobs))
        lengths.append(len(tokens))
    if not request.forward_only:
        model.gradients += 1
    output = types.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord",
        loss_fn_outputs=outputs,
        metrics=_metrics(losses, lengths, request.seq_id),
    )
    detail = {"num_datums": len(request.data), "loss_fn": request.loss_fn}
    return as_protobuf(protobuf.encode_forward_backward_output(output)), detail


def _loss(datum: Any, logprobs: Sequence[float]) -> float:
    """Cross-entropy, whatever the loss is called: enough to see what was asked for."""
    weights = datum.loss_fn_inputs.get("weights") or datum.loss_fn_inputs.get("advantages")
    factors = _flat(weights.tolist()) if weights is not None else [1.0] * len(logprobs)
    return -sum(w * lp for w, lp in zip(factors, logprobs, strict=True))


def _metrics(losses: list[float], lengths: list[int], seq_id: int) -> dict[str, float]:
    """One metric for each way in which clients combine them."""
    return {
        "loss:sum": sum(losses),
        "tokens:mean": sum(lengths) / len(lengths),
        "tokens:max": max(lengths),
        "tokens:min": min(lengths),
        "tokens:slack": max(lengths),
        "tokens:hash2": sum(lengths),
        "seq:unique": seq_id,
        "tokens:unheard_of": 1.0,
    }


def sample(sampler: Sampler, body: dict[str, Any]) -> Response:
    """The answer to one asample request."""
    prompt = [t for chunk in body["prompt"]["chunks"] for t in chunk.get("tokens", ())]
    params = body["sampling_params"]
    count = params.get("max_tokens") or 8
    seed = params.get("seed") or 0
    response = types.SampleResponse(
        sequences=[
            _sequence(
                sampled_tokens(prompt, seed, index, count),
                sampler.step,
                body.get("topk_sample_logprobs", 0),
            )
            for index in range(body["num_samples"])
        ],
        **_of_prompt(prompt, sampler.step, body),
    )
    return as_protobuf(protobuf.encode_sample_response(response))


def _sequence(tokens: list[int], step: int, top_k: int) -> types.SampledSequence:
    return types.SampledSequence(
        stop_reason="length",
        tokens_raw=array("i", tokens).tobytes(),
        logprobs_raw=_floats(logprob(token, step) for token in tokens),
        topk=_top(tokens, top_k, step) if top_k else None,
    )


def _of_prompt(prompt: list[int], step: int, body: dict[str, Any]) -> dict[str, Any]:
    """What was asked to be known of the prompt."""
    found: dict[str, Any] = {}
    if body.get("prompt_logprobs"):
        first = max(1, len(prompt) - (body.get("prompt_logprobs_last_n") or len(prompt)))
        found["prompt_logprobs_raw"] = _floats(
            math.nan if place < first else logprob(token, step)
            for place, token in enumerate(prompt)
        )
    if k := body.get("topk_prompt_logprobs"):
        found["topk_prompt"] = _top(prompt, k, step)
    if k := body.get("prompt_alt_tokens_k"):
        found["prompt_alt_tokens"] = _alternatives(prompt[1:], k, step)
    if (targets := body.get("target_prompt_logprobs")) and "sparse_crow_indices" not in targets:
        values = [0.0 if token < 0 else logprob(token, step) for token in targets["data"]]
        found["target_prompt_logprobs"] = types.TensorData(values, "float32", targets["shape"])
    return found


def _top(tokens: list[int], k: int, step: int) -> types.TopkLogprobs:
    pairs = [pair for token in tokens for pair in top_tokens(token, k, step)]
    return types.TopkLogprobs(
        token_ids_raw=array("i", [token for token, _ in pairs]).tobytes(),
        logprobs_raw=_floats(value for _, value in pairs),
        k=k,
        length=len(tokens),
    )


def _alternatives(tokens: list[int], k: int, step: int) -> types.PromptAltTokens:
    pairs = [pair for token in tokens for pair in top_tokens(token, k, step)]
    shape = [len(tokens), k]
    return types.PromptAltTokens(
        tokens=types.TensorData([token for token, _ in pairs], "int64", shape),
        logprobs=types.TensorData([value for _, value in pairs], "float32", shape),
    )


def _floats(values: Any) -> bytes:
    return array("f", values).tobytes()


def _flat(values: Any) -> list[Any]:
    if values and isinstance(values[0], list):
        return [item for row in values for item in _flat(row)]
    return list(values)
