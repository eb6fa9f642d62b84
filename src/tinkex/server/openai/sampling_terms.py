"""Sampling parameters of an OpenAI request, converted to `SamplingParams`."""

from __future__ import annotations

from tinkex.server.openai.errors import BadParameter
from tinkex.server.openai.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    OpenAIRequest,
)
from tinkex.types.sampling import SamplingParams

__all__ = ["check_chat", "check_completion", "max_tokens_of", "sampling_params", "stops_of"]

_COMPLETION_TOKENS = 16
"""Default `max_tokens` of a completion. A chat's answer has no default limit."""

_SAME_NAMES = tuple(
    name for name in SamplingParams.__struct_fields__ if name not in ("max_tokens", "stop")
)
"""Sampling parameters that have the same name and meaning in both protocols."""

_REFUSED_IN_CHAT = {
    "functions": "Use tools.",
    "function_call": "Use tool_choice.",
    "audio": "The models of this server write text only.",
    "reasoning_effort": "Set what the model's template knows in chat_template_kwargs.",
    "verbosity": "",
    "web_search_options": "",
}


def sampling_params(request: OpenAIRequest) -> SamplingParams:
    """How to sample.

    Raises:
        ValidationError: a value lies outside its range.
    """
    given = {name: getattr(request, name) for name in _SAME_NAMES}
    return SamplingParams(
        # At least one token is sampled; with max_tokens=0 it is left out of the answer.
        max_tokens=max_tokens_of(request) or (None if max_tokens_of(request) is None else 1),
        stop=stops_of(request) or None,
        **{name: value for name, value in given.items() if value is not None},
    )


def stops_of(request: OpenAIRequest) -> list[str]:
    """The stop texts, which are not part of the answer."""
    if request.stop is None:
        return []
    return [request.stop] if isinstance(request.stop, str) else request.stop


def max_tokens_of(request: OpenAIRequest) -> int | None:
    """Maximum number of tokens of the answer; None for as many as fit the context."""
    if isinstance(request, CompletionRequest):
        return _COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    newer = getattr(request, "max_completion_tokens", None)
    return request.max_tokens if newer is None else newer


def check_chat(request: ChatCompletionRequest) -> None:
    """Refuses what would change the answer and is not there.

    Raises:
        BadParameter: with its name.
    """
    for name, hint in _REFUSED_IN_CHAT.items():
        if getattr(request, name) is not None:
            raise BadParameter(f"{name} is not supported.", param=name, hint=hint)
    if request.modalities not in (None, ["text"]):
        raise BadParameter("modalities must be ['text'].", param="modalities")
    if request.top_logprobs is not None and not request.logprobs:
        raise BadParameter("top_logprobs needs logprobs=true.", param="top_logprobs")
    if max_tokens_of(request) == 0:
        raise BadParameter("max_tokens=0 must be at least 1.", param="max_tokens")
    _check_both(request)


def check_completion(request: CompletionRequest) -> None:
    """Refuses what would change the answer and is not there.

    Raises:
        BadParameter: with its name.
    """
    if request.suffix:
        raise BadParameter(
            "suffix is not supported: the models only continue a text.", param="suffix"
        )
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise BadParameter(
            f"best_of={request.best_of} is not supported unless it equals n.",
            param="best_of",
            hint="Set n, and choose among the answers by their logprobs.",
        )
    if request.stream and request.echo and request.logprobs is not None:
        raise BadParameter(
            "stream=true with echo and logprobs is not supported: a prompt is scored as a whole.",
            param="stream",
            hint="Leave out stream.",
        )
    if request.max_tokens == 0 and not request.echo:
        raise BadParameter(
            "max_tokens=0 needs echo=true: there is nothing to show.", param="max_tokens"
        )
    _check_both(request)


def _check_both(request: OpenAIRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise BadParameter("stream_options needs stream=true.", param="stream_options")
    if "" in stops_of(request):
        raise BadParameter(
            "stop has an empty text, which would end an answer at once.", param="stop"
        )
    older, newer = request.max_tokens, getattr(request, "max_completion_tokens", None)
    if older is not None and newer is not None and older != newer:
        raise BadParameter(
            f"max_tokens={older} and max_completion_tokens={newer} differ.", param="max_tokens"
        )
