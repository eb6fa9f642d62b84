"""One chat completion: from the request to a sample, and from its result to the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tinkex.server.openai.answer_text import text_of
from tinkex.server.openai.conversation import (
    offered_tools,
    template_messages,
    template_variables,
)
from tinkex.server.openai.errors import BadParameter
from tinkex.server.openai.json_answers import JsonCheck, json_check
from tinkex.server.openai.model_text import ModelText
from tinkex.server.openai.requests import ChatCompletionRequest
from tinkex.server.openai.sampling_terms import check_chat, sampling_params, stops_of
from tinkex.server.openai.token_logprobs import ScoredTokens, chat_logprobs
from tinkex.server.openai.tool_formats import ParsedCall, ToolFormat
from tinkex.types.model_input import ModelInput
from tinkex.types.requests import SampleRequest
from tinkex.types.sampling import SampledSequence

__all__ = ["ChatPlan", "plan_chat", "shown_calls"]


class ChatPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to sample for a chat, and how to read the answers."""

    request: ChatCompletionRequest
    text: ModelText
    sample: SampleRequest
    prompt_tokens: int
    stops: list[str]
    tool_format: ToolFormat | None
    json_check: JsonCheck | None

    async def choices(self, sequences: list[SampledSequence]) -> list[dict[str, Any]]:
        """The `choices` of a whole answer."""
        return [await self._choice(index, each) for index, each in enumerate(sequences)]

    async def _choice(self, index: int, sequence: SampledSequence) -> dict[str, Any]:
        message, reason = await self.message(sequence.tokens, sequence.stop_reason)
        scored = ScoredTokens(sequence.tokens, sequence.logprobs or (), sequence.topk_logprobs)
        return {
            "index": index,
            "message": message,
            "logprobs": self.logprobs(scored),
            "finish_reason": reason,
        }

    async def message(self, tokens: list[int], stop_reason: str) -> tuple[dict[str, Any], str]:
        """The assistant's message of a whole answer, and why it ended."""
        content = self._text_of(tokens, stop_reason)
        refusal = None
        if self.tool_format is not None:
            parsed = self.tool_format.parse(self._text_of(tokens, stop_reason, with_special=True))
            if parsed.calls:
                calls = shown_calls(self.tool_format, parsed.calls)
                message = {"role": "assistant", "content": parsed.content or None}
                return {**message, "refusal": None, "tool_calls": calls}, "tool_calls"
        if self.json_check is not None:
            refusal = await asyncio.to_thread(self.json_check, content)
        return {"role": "assistant", "content": content, "refusal": refusal}, stop_reason

    def logprobs(self, scored: ScoredTokens) -> dict[str, Any] | None:
        """The logprobs of an answer's tokens, if the request has `logprobs`."""
        return chat_logprobs(scored, self.text) if self.request.logprobs else None

    def _text_of(self, tokens: list[int], stop_reason: str, *, with_special: bool = False) -> str:
        return text_of(self.text, tokens, stop_reason, self.stops, with_special=with_special)


async def plan_chat(request: ChatCompletionRequest, text: ModelText) -> ChatPlan:
    """The plan of a request.

    Raises:
        ClientError: a parameter is not supported; the message names it.
        ValidationError: a value is out of range, or the template refuses the conversation.
    """
    check_chat(request)
    tools = offered_tools(request)
    tool_format = _format(text) if tools else None
    messages = template_messages(request)
    ids = await text.render(messages, tools, template_variables(request))
    sample = SampleRequest(
        num_samples=request.n or 1,
        prompt=ModelInput.from_ints(ids),
        sampling_params=sampling_params(request),
        topk_sample_logprobs=request.top_logprobs or 0,
        stream=bool(request.stream),
    )
    return ChatPlan(
        request=request,
        text=text,
        sample=sample,
        prompt_tokens=len(ids),
        stops=stops_of(request),
        tool_format=tool_format,
        json_check=json_check(request.response_format),
    )


def shown_calls(format_: ToolFormat, calls: tuple[ParsedCall, ...]) -> list[dict[str, Any]]:
    """Calls as a message has them."""
    return [
        {
            "id": format_.new_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def _format(text: ModelText) -> ToolFormat:
    found = text.tool_format()
    if found is None:
        raise BadParameter(
            "tools is not supported for this model: its chat template shows none, or has calls "
            "written in a form that this server does not read.",
            param="tools",
        )
    return found
