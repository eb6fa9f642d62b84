"""Request bodies of OpenAI's clients. A null is treated as a missing field."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

__all__ = [
    "ChatCompletionRequest",
    "ChatMessage",
    "CompletionRequest",
    "OpenAIRequest",
    "StreamOptions",
]

Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the assistant called earlier; `arguments` is JSON in a text."""

    name: str
    arguments: str = "{}"


class CalledTool(msgspec.Struct, frozen=True, kw_only=True):
    """One call in an assistant's message."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation; fields that do not change the prompt are not read."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    function_call: Any = None
    audio: Any = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`stream_options`: what a stream holds besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class OpenAIRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of both kinds of requests; those of the last group do not change the answer."""

    model: str
    max_tokens: Number | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class ChatCompletionRequest(OpenAIRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Continues a conversation. A field of the last group is refused if it changes the answer."""

    messages: list[ChatMessage]
    max_completion_tokens: Number | None = None
    logprobs: bool | None = None
    top_logprobs: Number | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prediction: Any = None  # a hint that only affects speed

    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionRequest(OpenAIRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Continues one text or several."""

    prompt: Any
    echo: bool | None = None
    logprobs: Number | None = None
    best_of: Number | None = None
    suffix: str | None = None
