"""Checks of one sampling request against its model. Pure, without torch.

The ranges of sampling parameters that hold for every model are declared with `SamplingParams`.
"""

from __future__ import annotations

import numpy as np

from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import ModelInfo, SampleRequest
from tinkex.engine.sampling.stops import Stops
from tinkex.engine.validation import check_tokens

__all__ = ["check_sample", "max_new_tokens"]


def check_sample(request: SampleRequest, model: ModelInfo) -> None:
    """Returns if the request can be sampled on this model.

    Raises:
        EngineUserError: with the field that has to change.
    """
    check_tokens(request.tokens, model, "prompt")
    if request.tokens.size >= model.context_length:
        raise EngineUserError(
            f"prompt has {request.tokens.size} tokens, and this model's maximum context length "
            f"is {model.context_length} tokens ({model.name}). Leave room for at least one more.",
            code="context-too-long",
            field="prompt",
            value=request.tokens.size,
        )
    _check_numbers(request, model)
    _check_last_n(request)
    _check_targets(request, model)
    _check_bias(request, model)
    if "" in Stops.of(request.params).strings:
        raise EngineUserError(
            "stop holds an empty string, which would stop at once. Remove it.",
            code="bad-sampling-value",
            field="stop",
            value="",
        )


def max_new_tokens(request: SampleRequest, model: ModelInfo) -> int:
    """Returns how many tokens may follow the prompt: `max_tokens`, or less
    where the context ends."""
    room = model.context_length - int(request.tokens.size)
    max_tokens = request.params.max_tokens
    return room if max_tokens is None else min(room, max_tokens)


def _check_numbers(request: SampleRequest, model: ModelInfo) -> None:
    vocab = model.vocab_size
    rules = {
        "num_samples": (request.num_samples >= 1, "1 or more"),
        "topk_prompt_logprobs": (0 <= request.topk_prompt_logprobs <= vocab, f"0 to {vocab}"),
        "topk_sample_logprobs": (0 <= request.topk_sample_logprobs <= vocab, f"0 to {vocab}"),
        "prompt_alt_tokens_k": (request.prompt_alt_tokens_k >= 0, "0 or more"),
    }
    for name, (is_fine, wanted) in rules.items():
        if not is_fine:
            value = getattr(request, name)
            raise EngineUserError(
                f"{name}={value} is out of range. Use {wanted}.",
                code="bad-sampling-value",
                field=name,
                value=value,
            )


def _check_bias(request: SampleRequest, model: ModelInfo) -> None:
    for token in request.params.logit_bias or ():
        if token >= model.vocab_size:
            raise EngineUserError(
                f"logit_bias has token id {token}. {model.name} has ids of "
                f"0..{model.vocab_size - 1}.",
                code="token-out-of-vocabulary",
                field="logit_bias",
                value=token,
            )


def _check_last_n(request: SampleRequest) -> None:
    last_n = request.prompt_logprobs_last_n
    if last_n is None:
        return
    most = int(request.tokens.size) - 1
    if not request.prompt_logprobs or not 1 <= last_n <= most:
        raise EngineUserError(
            f"prompt_logprobs_last_n={last_n} needs prompt_logprobs and a value of 1..{most} "
            f"for a prompt of {request.tokens.size} tokens.",
            code="bad-sampling-value",
            field="prompt_logprobs_last_n",
            value=last_n,
        )


def _check_targets(request: SampleRequest, model: ModelInfo) -> None:
    targets = request.target_prompt_logprobs
    if targets is None:
        return
    rows = int(request.tokens.size) - 1
    if targets.ndim != 2 or targets.shape[0] != rows:
        raise EngineUserError(
            f"target_prompt_logprobs has shape {list(targets.shape)}, wanted [{rows}, K]: one row "
            "for each prompt token after the first.",
            code="wrong-length",
            field="target_prompt_logprobs",
            value=list(targets.shape),
        )
    if (
        not np.issubdtype(targets.dtype, np.integer)
        or ((targets < -1) | (targets >= model.vocab_size)).any()
    ):
        raise EngineUserError(
            f"target_prompt_logprobs must hold token ids of 0..{model.vocab_size - 1}, or -1 for "
            "cells to skip.",
            code="token-out-of-vocabulary",
            field="target_prompt_logprobs",
        )
