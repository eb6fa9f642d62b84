"""Logprobs in OpenAI's two forms: entries of a chat, and the parallel lists of completions.

They cover every sampled token, also the stop token that ended the answer, with the same values that
clients of the Tinker API get.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tinkex.server.openai.model_text import ModelText
from tinkex.tokenizers.incremental_text import IncrementalText

__all__ = ["CompletionLogprobs", "ScoredTokens", "chat_logprobs", "joined"]

Alternatives = Sequence[tuple[int, float]]


class ScoredTokens(msgspec.Struct, frozen=True):
    """Tokens, their logprobs, and the most likely tokens at each position, if requested. None for a
    token without a logprob, such as the first of a prompt."""

    token_ids: Sequence[int]
    logprobs: Sequence[float | None]
    alternatives: Sequence[Alternatives | None] | None = None

    def rows(self) -> list[tuple[int, float | None, Alternatives]]:
        """One row for each token."""
        others = self.alternatives or [None] * len(self.token_ids)
        rows = zip(self.token_ids, self.logprobs, others, strict=True)
        return [(token, logprob, other or ()) for token, logprob, other in rows]


def chat_logprobs(scored: ScoredTokens, text: ModelText) -> dict[str, Any]:
    """The `logprobs` of a chat's choice."""
    entries = [
        {
            **_entry(text, token, logprob or 0.0),
            "top_logprobs": [_entry(text, other, value) for other, value in others],
        }
        for token, logprob, others in scored.rows()
    ]
    return {"content": entries, "refusal": None}


class CompletionLogprobs:
    """The `logprobs` of a completion's choice, built incrementally: the text offset of a token
    depends on the tokens before it."""

    def __init__(self, text: ModelText, offset: int = 0, *, with_special: bool = False) -> None:
        self._text = text
        self._offset = offset
        self._so_far: IncrementalText = text.incremental(with_special=with_special)

    def add(self, scored: ScoredTokens) -> dict[str, Any]:
        """The lists for these tokens, which follow those that were added before."""
        tokens, values, tops, offsets = [], [], [], []
        for token, logprob, others in scored.rows():
            tokens.append(self._text.shown(token)[0])
            values.append(logprob)
            tops.append(None if logprob is None else self._top(token, logprob, others))
            offsets.append(self._offset + self._so_far.num_chars)
            self._so_far.add([token])
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _top(self, token: int, logprob: float, others: Alternatives) -> dict[str, float]:
        """The most likely tokens, and the token itself, which may not be among them."""
        top = {self._text.shown(other)[0]: value for other, value in others}
        return {**top, self._text.shown(token)[0]: logprob}


def joined(*parts: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Lists one after the other."""
    return {name: [each for part in parts for each in part[name]] for name in parts[0]}


def _entry(text: ModelText, token_id: int, logprob: float) -> dict[str, Any]:
    shown, raw = text.shown(token_id)
    return {"token": shown, "bytes": raw, "logprob": logprob}
