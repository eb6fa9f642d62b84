"""A streamed completion. Its chunks, joined, equal the response without streaming."""

from __future__ import annotations

from typing import Any

from tinkex.server.openai.answer_text import StoppedText, text_of
from tinkex.server.openai.completions import CompletionPlan
from tinkex.server.openai.token_logprobs import ScoredTokens
from tinkex.types.sample_stream import SampleDelta

__all__ = ["CompletionStream"]

Piece = dict[str, Any]


class CompletionStream:
    """The choices for one prompt as they grow."""

    def __init__(self, plan: CompletionPlan, place: int) -> None:
        self._plan = plan
        self._first = place * (plan.request.n or 1)
        self._echo = plan.prompts[place].echo
        self._choices = [
            _GrowingText(plan, place, self._first + index) for index in range(plan.request.n or 1)
        ]

    def begin(self) -> list[Piece]:
        """The prompt, if the request has `echo`."""
        if not self._echo:
            return []
        indices = range(self._first, self._first + len(self._choices))
        return [_piece(index, self._echo) for index in indices]

    async def add(self, delta: SampleDelta) -> list[Piece]:
        """The chunks for new tokens."""
        return self._choices[delta.index].add(delta)


class _GrowingText:
    """One choice: its tokens, and how much of its text was sent."""

    def __init__(self, plan: CompletionPlan, place: int, index: int) -> None:
        self._plan = plan
        self._index = index
        self._tokens: list[int] = []
        self._given = 0
        self._text = plan.text.incremental()
        self._stopped = StoppedText(plan.stops)
        self._logprobs = plan.logprobs_of(plan.prompts[place])

    def add(self, delta: SampleDelta) -> list[Piece]:
        if self._plan.is_scoring_only:
            return [_piece(self._index, "", reason="length")] if delta.stop_reason else []
        self._tokens += delta.tokens
        logprobs = None
        if self._plan.request.logprobs is not None and delta.tokens:
            scored = ScoredTokens(delta.tokens, delta.logprobs, delta.topk_logprobs)
            logprobs = self._logprobs.add(scored)
        if delta.stop_reason is None:
            text = self._stopped.add(self._text.add(delta.tokens))
        else:
            plan = self._plan
            whole = text_of(plan.text, self._tokens, delta.stop_reason, plan.stops)
            text = whole[self._given :]
        self._given += len(text)
        if not (text or logprobs or delta.stop_reason):
            return []
        return [_piece(self._index, text, logprobs, delta.stop_reason)]


def _piece(
    index: int, text: str, logprobs: Piece | None = None, reason: str | None = None
) -> Piece:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
