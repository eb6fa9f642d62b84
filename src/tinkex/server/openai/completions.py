"""Text completions: from the request to samples, and from their results to the answer."""

from __future__ import annotations

from typing import Any

import msgspec

from tinkex.server.openai.answer_text import text_of
from tinkex.server.openai.errors import BadParameter
from tinkex.server.openai.model_text import ModelText
from tinkex.server.openai.requests import CompletionRequest
from tinkex.server.openai.sampling_terms import (
    check_completion,
    max_tokens_of,
    sampling_params,
    stops_of,
)
from tinkex.server.openai.token_logprobs import CompletionLogprobs, ScoredTokens, joined
from tinkex.types.model_input import ModelInput
from tinkex.types.requests import SampleRequest
from tinkex.types.sampling import SampledSequence, SampleResponse

__all__ = ["CompletionPlan", "PromptPlan", "plan_completion"]


class PromptPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt: its tokens, its text if the request has `echo`, and what to sample."""

    token_ids: list[int]
    sample: SampleRequest
    echo: str = ""
    is_text: bool = True


class CompletionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to sample for a request, and how to read the answers."""

    request: CompletionRequest
    text: ModelText
    prompts: list[PromptPlan]
    stops: list[str]

    @property
    def is_scoring_only(self) -> bool:
        """Whether the response holds the prompt alone."""
        return max_tokens_of(self.request) == 0

    def choices(self, place: int, answer: SampleResponse) -> list[dict[str, Any]]:
        """The `choices` for one prompt."""
        first = place * (self.request.n or 1)
        return [
            self._choice(first + index, self.prompts[place], answer, sequence)
            for index, sequence in enumerate(answer.sequences)
        ]

    def _choice(
        self, index: int, prompt: PromptPlan, answer: SampleResponse, sequence: SampledSequence
    ) -> dict[str, Any]:
        shown = ""
        if not self.is_scoring_only:
            shown = text_of(self.text, sequence.tokens, sequence.stop_reason, self.stops)
        logprobs = None
        if self.request.logprobs is not None:
            parts = [self.prompt_logprobs(prompt, answer)] if self.request.echo else []
            if not self.is_scoring_only:
                parts.append(self.logprobs_of(prompt).add(scored_answer(sequence)))
            logprobs = joined(*parts)
        return {
            "index": index,
            "text": prompt.echo + shown,
            "logprobs": logprobs,
            "finish_reason": "length" if self.is_scoring_only else sequence.stop_reason,
        }

    def logprobs_of(self, prompt: PromptPlan) -> CompletionLogprobs:
        """The logprobs of an answer to the prompt, built incrementally."""
        return CompletionLogprobs(self.text, len(prompt.echo))

    def prompt_logprobs(self, prompt: PromptPlan, answer: SampleResponse) -> dict[str, Any]:
        """The logprobs of the prompt's own tokens."""
        scores = answer.prompt_logprobs or [None] * len(prompt.token_ids)
        scored = ScoredTokens(prompt.token_ids, scores, answer.topk_prompt_logprobs)
        return CompletionLogprobs(self.text, with_special=not prompt.is_text).add(scored)


def scored_answer(sequence: SampledSequence) -> ScoredTokens:
    """The tokens of an answer with their logprobs."""
    return ScoredTokens(sequence.tokens, sequence.logprobs or (), sequence.topk_logprobs)


async def plan_completion(
    request: CompletionRequest, text: ModelText, max_prompts: int
) -> CompletionPlan:
    """The plan of a request.

    Raises:
        ClientError: a parameter is not supported; the message names it.
        ValidationError: a value is out of range.
    """
    check_completion(request)
    given = _prompts(request.prompt)
    if len(given) > max_prompts:
        raise BadParameter(
            f"prompt has {len(given)} texts, above this server's limit of {max_prompts}.",
            param="prompt",
        )
    return CompletionPlan(
        request=request,
        text=text,
        prompts=[await _prompt(request, text, each) for each in given],
        stops=stops_of(request),
    )


async def _prompt(
    request: CompletionRequest, text: ModelText, given: str | list[int]
) -> PromptPlan:
    is_text = isinstance(given, str)
    ids = await text.encode(given) if isinstance(given, str) else given
    if not ids:
        raise BadParameter("prompt is empty; it needs at least one token.", param="prompt")
    echo = ""
    if request.echo:
        echo = given if isinstance(given, str) else text.decode(given, with_special=True)
    top = request.logprobs or 0
    is_scored = bool(request.echo) and request.logprobs is not None
    sample = SampleRequest(
        num_samples=request.n or 1,
        prompt=ModelInput.from_ints(ids),
        sampling_params=sampling_params(request),
        topk_sample_logprobs=top,
        prompt_logprobs=is_scored or None,
        topk_prompt_logprobs=top if is_scored else 0,
        stream=bool(request.stream),
    )
    return PromptPlan(token_ids=ids, sample=sample, echo=echo, is_text=is_text)


def _prompts(prompt: Any) -> list[str | list[int]]:
    """One text, several, one list of token ids, or several."""
    if isinstance(prompt, str) or _are_ids(prompt):
        return [prompt]
    listed = prompt if isinstance(prompt, list) else []
    for are_fine in (_is_text, _are_ids):
        if listed and all(map(are_fine, listed)):
            return listed
    raise BadParameter(
        "prompt must be a text, a list of texts, a list of token ids, or several of them.",
        param="prompt",
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(each) is int and 0 <= each < 2**31 for each in value)
    )
