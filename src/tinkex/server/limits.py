"""Checks of requests against the server's limits, before anything is queued."""

from __future__ import annotations

from tinkex.server.errors import LimitExceeded
from tinkex.types.model_input import EncodedTextChunk, ModelInput
from tinkex.types.requests import ForwardBackwardRequest, SampleRequest
from tinkex.wire.limits import Limits


def check_training(request: ForwardBackwardRequest, limits: Limits) -> int:
    """The number of tokens in the request.

    Raises:
        LimitExceeded: a limit is exceeded; the message names field, value and limit.
    """
    _check("data", len(request.data), limits.max_datums_per_request, "datums")
    total = 0
    for index, datum in enumerate(request.data):
        length = count_tokens(datum.model_input)
        _check(f"data[{index}].model_input", length, limits.max_tokens_per_sequence, "tokens")
        total += length
    _check("data", total, limits.max_tokens_per_request, "tokens")
    return total


def check_sample(request: SampleRequest, limits: Limits, context_length: int) -> int:
    """What the request may cost, in tokens.

    Raises:
        LimitExceeded: a limit is exceeded; the message names field, value and limit.
    """
    params = request.sampling_params
    stops = [] if params.stop is None or isinstance(params.stop, str) else params.stop
    _check("num_samples", request.num_samples, limits.max_num_samples, "")
    _check("stop", len(stops), limits.max_stop_sequences, "entries")
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        _check(name, getattr(request, name), limits.max_top_k, "")
    prompt = count_tokens(request.prompt)
    _check("prompt", prompt, limits.max_tokens_per_sequence, "tokens")
    room = max(0, context_length - prompt)
    new_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
    return max(1, prompt + max(0, request.num_samples) * new_tokens)


def count_tokens(model_input: ModelInput) -> int:
    """The text tokens of an input; other chunks are the engine's to refuse."""
    return sum(c.length for c in model_input.chunks if isinstance(c, EncodedTextChunk))


def _check(field: str, value: int, limit: int, unit: str) -> None:
    if value > limit:
        shown = f"{value} {unit}".strip()
        raise LimitExceeded(
            f"{field} has {shown}, above this server's limit of {limit}."
            if unit
            else f"{field}={value} is above this server's limit of {limit}.",
            hint="get_server_capabilities lists the limits.",
        )
