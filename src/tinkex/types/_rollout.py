"""Converts a sampled answer to a training example of reinforcement learning: shifted and padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinkex.errors import ValidationError
from tinkex.types.model_input import EncodedTextChunk, ModelInput
from tinkex.types.sampling import SampledSequence

__all__ = ["rollout_example"]

_LOSS_OF_SEQUENCES = "gspo"


def rollout_example(
    prompt: ModelInput,
    sequence: SampledSequence,
    advantage: float | Sequence[float],
    loss_fn: str,
) -> tuple[ModelInput, dict[str, Any]]:
    """Returns the input of one answer, and the inputs of a policy-gradient loss for it.

    Raises:
        ValidationError: prompt or answer is empty, or logprobs or advantages do not fit it.
    """
    tokens = sequence.tokens
    if prompt.length == 0 or not tokens:
        raise ValidationError(
            f"The prompt has {prompt.length} positions and the answer {len(tokens)} tokens; both "
            "need at least one."
        )
    logprobs = sequence.logprobs
    if logprobs is None:
        raise ValidationError("The sampled sequence has no logprobs, which the loss needs.")
    num_before = prompt.length - 1
    unscored = [0.0] * num_before
    inputs = {
        "target_tokens": [*_prompt_targets(prompt), *tokens],
        "logprobs": unscored + logprobs,
        "advantages": unscored + _advantages(advantage, len(tokens)),
    }
    if loss_fn == _LOSS_OF_SEQUENCES:  # servers refuse inputs that a loss does not take
        inputs["sequence_ratio_mask"] = unscored + [1.0] * len(tokens)
    return _input(prompt, tokens), inputs


def _input(prompt: ModelInput, tokens: list[int]) -> ModelInput:
    if _is_text(prompt):
        return ModelInput.from_ints([*prompt.to_ints(), *tokens[:-1]])
    return prompt.append(EncodedTextChunk(tokens=tokens[:-1])) if tokens[1:] else prompt


def _prompt_targets(prompt: ModelInput) -> list[int]:
    """Returns the targets of all prompt positions but the last; 0 for images, without tokens.

    Their advantage is 0, so that it does not matter to the loss.
    """
    return prompt.to_ints()[1:] if _is_text(prompt) else [0] * (prompt.length - 1)


def _is_text(prompt: ModelInput) -> bool:
    return all(isinstance(chunk, EncodedTextChunk) for chunk in prompt.chunks)


def _advantages(advantage: float | Sequence[float], num_tokens: int) -> list[float]:
    given: Any = advantage
    if hasattr(given, "tolist"):
        given = given.tolist()
    if isinstance(given, int | float):
        return [float(given)] * num_tokens
    advantages = [float(each) for each in given]
    if len(advantages) != num_tokens:
        raise ValidationError(
            f"There are {len(advantages)} advantages for {num_tokens} sampled tokens; give one "
            "number for all, or one for each."
        )
    return advantages
