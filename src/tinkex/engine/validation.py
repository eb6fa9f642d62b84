"""Checks of one request against its model, before any batch is built.

Pure and without torch, so that every engine refuses the same things with the same words. Every
message says what is wrong, which value it was, and what to do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec, ModelInfo, OptimRequest
from tinkex.types.training import MAX_LORA_ALPHA

__all__ = ["check_lora", "check_optim", "check_same_optimizer", "check_tokens", "check_vocabulary"]


def check_optim(request: OptimRequest) -> None:
    """Returns if the optimizer's numbers make a defined step.

    Raises:
        EngineUserError: with the number that has to change.
    """
    for name, allowed in request.params.RANGES.items():
        value = getattr(request.params, name)
        if not allowed.holds(value):
            raise EngineUserError(
                f"{name}={value} is out of range. Use a finite number, {allowed.wanted}.",
                code="bad-optimizer-value",
                field=name,
                value=value,
            )


def check_same_optimizer(held: str | None, given: str) -> None:
    """Returns if an adapter with this optimizer can take a step of, or state from, the given one.

    Raises:
        EngineUserError: they differ.
    """
    if held is not None and held != given:
        raise EngineUserError(
            f"This run's optimizer is {held!r}, not {given!r}. Use parameters and optimizer state "
            f"of {held!r}, or create a run with the optimizer {given!r}.",
            code="wrong-optimizer",
            field="optimizer",
            value=given,
        )


def check_lora(spec: LoraSpec, model: ModelInfo) -> None:
    """Returns if an adapter of this spec can be made for the model.

    Raises:
        EngineUserError: with the field that has to change.
    """
    if not 1 <= spec.rank <= model.max_rank:
        raise EngineUserError(
            f"rank={spec.rank} is outside 1..{model.max_rank} for {model.name}. "
            f"Use a rank of at most {model.max_rank}.",
            code="rank-out-of-range",
            field="rank",
            value=spec.rank,
        )
    if not 0 < spec.alpha <= MAX_LORA_ALPHA:
        raise EngineUserError(
            f"alpha={spec.alpha} is out of range. Use a number above 0, at most "
            f"{MAX_LORA_ALPHA:g}.",
            code="alpha-out-of-range",
            field="alpha",
            value=spec.alpha,
        )
    if not (spec.train_attn or spec.train_mlp or spec.train_unembed):
        raise EngineUserError(
            "train_attn, train_mlp and train_unembed are all off, so nothing would be trained. "
            "Turn at least one on.",
            code="nothing-to-train",
            field="train_attn",
            value=False,
        )


def check_tokens(tokens: npt.NDArray[np.generic], model: ModelInfo, field: str) -> None:
    """Returns if these are token ids of the model, at least one and no more than its context.

    Raises:
        EngineUserError: with the first id that is out of the vocabulary, or the length.
    """
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise EngineUserError(
            f"{field} must be a flat list of integers, got {tokens.dtype} of shape "
            f"{list(tokens.shape)}.",
            code="bad-tokens",
            field=field,
            value=tokens.dtype,
        )
    if tokens.size == 0:
        raise EngineUserError(
            f"{field} is empty. Send at least one token.", code="empty-tokens", field=field
        )
    if tokens.size > model.context_length:
        # LiteLLM knows this error by OpenAI's words, "this model's maximum context length is".
        raise EngineUserError(
            f"{field} has {tokens.size} tokens, but this model's maximum context length is "
            f"{model.context_length} tokens ({model.name}). Shorten or split it.",
            code="context-too-long",
            field=field,
            value=tokens.size,
        )
    check_vocabulary(tokens, model, field)


def check_vocabulary(ids: npt.NDArray[np.generic], model: ModelInfo, field: str) -> None:
    """Returns if all ids are token ids of the model.

    Raises:
        EngineUserError: with the first id that is not.
    """
    numbers = ids.astype(np.int64, copy=False)
    is_outside = (numbers < 0) | (numbers >= model.vocab_size)
    if is_outside.any():
        where = tuple(int(i) for i in np.argwhere(is_outside)[0])
        raise EngineUserError(
            f"{field}{list(where)} is token {int(numbers[where])}, outside the vocabulary of "
            f"{model.name} (0..{model.vocab_size - 1}). Was it made with this model's tokenizer?",
            code="token-out-of-vocabulary",
            field=field,
            value=int(numbers[where]),
        )
