"""A streamed chat response. Its chunks, joined, equal the response without streaming.

Text is sent as soon as it is certain: complete characters, no prefix of a stop text and, if the
request has tools, no prefix of a tool call. Tool calls are sent complete, at the end of a choice.
"""

from __future__ import annotations

from typing import Any

from tinkex.server.openai.answer_text import StoppedText
from tinkex.server.openai.chat import ChatPlan
from tinkex.server.openai.token_logprobs import ScoredTokens
from tinkex.types.sample_stream import SampleDelta

__all__ = ["ChatStream"]

Piece = dict[str, Any]


class ChatStream:
    """The choices of one answer as they grow."""

    def __init__(self, plan: ChatPlan) -> None:
        self._plan = plan
        self._choices = [_Choice(plan, index) for index in range(plan.sample.num_samples)]

    def begin(self) -> list[Piece]:
        """The first chunk of each choice, with the role."""
        said = {"role": "assistant", "content": "", "refusal": None}
        return [_piece(index, said) for index in range(len(self._choices))]

    async def add(self, delta: SampleDelta) -> list[Piece]:
        """The chunks for new tokens."""
        return await self._choices[delta.index].add(delta)


class _Choice:
    """One choice: its tokens, and the text sent so far."""

    def __init__(self, plan: ChatPlan, index: int) -> None:
        self._plan = plan
        self._index = index
        self._tokens: list[int] = []
        self._given = ""
        self._pending = ""  # certain, but may be the prefix of a tool call
        self._text = plan.text.incremental()
        self._stopped = StoppedText(plan.stops)
        self._raw_text = plan.text.incremental(with_special=True)
        self._raw = ""

    async def add(self, delta: SampleDelta) -> list[Piece]:
        self._tokens += delta.tokens
        scored = ScoredTokens(delta.tokens, delta.logprobs, delta.topk_logprobs)
        logprobs = self._plan.logprobs(scored) if delta.tokens else None
        if delta.stop_reason is None:
            text = self._grow(delta.tokens)
            return [self._said(text, logprobs)] if text or logprobs else []
        return await self._end(delta.stop_reason, logprobs)

    def _grow(self, tokens: list[int]) -> str:
        if self._plan.tool_format is None:
            text = self._stopped.add(self._text.add(tokens))
            self._given += text
            return text
        before = len(self._given)
        for token in tokens:
            self._pending += self._stopped.add(self._text.add([token]))
            self._raw += self._raw_text.add([token])
            if self._plan.tool_format.starts_at(self._raw) == len(self._raw):
                self._given += self._pending
                self._pending = ""
        return self._given[before:]

    async def _end(self, stop_reason: str, logprobs: Piece | None) -> list[Piece]:
        message, reason = await self._plan.message(self._tokens, stop_reason)
        pieces = []
        whole = message["content"] or ""
        calls = message.get("tool_calls") or []
        given = self._given.lstrip() if calls else self._given  # text before a call is stripped
        rest = whole[len(given) :] if whole.startswith(given) else ""
        if rest or logprobs:
            pieces.append(self._said(rest, logprobs))
        last: Piece = {}
        if calls:
            numbered = [{"index": i, **call} for i, call in enumerate(calls)]
            pieces.append(_piece(self._index, {"tool_calls": numbered}))
        if message["refusal"] is not None:
            last = {"refusal": message["refusal"]}
        return [*pieces, _piece(self._index, last, reason=reason)]

    def _said(self, text: str, logprobs: Piece | None) -> Piece:
        return _piece(self._index, {"content": text}, logprobs)


def _piece(
    index: int, delta: Piece, logprobs: Piece | None = None, reason: str | None = None
) -> Piece:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
