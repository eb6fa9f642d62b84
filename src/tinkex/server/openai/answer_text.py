"""The text of one answer, without its last stop token and without the requested stop text."""

from __future__ import annotations

from collections.abc import Sequence

from tinkex.server.openai.model_text import ModelText

__all__ = ["StoppedText", "text_of"]


def text_of(
    text: ModelText,
    token_ids: list[int],
    stop_reason: str,
    stops: Sequence[str],
    *,
    with_special: bool = False,
) -> str:
    """The text of a whole answer."""
    whole = text.decode(text.without_end(token_ids, stop_reason), with_special=with_special)
    ends = [place for stop in stops if (place := whole.find(stop)) >= 0]
    return whole[: min(ends)] if ends else whole


class StoppedText:
    """Streamed text of an answer. A suffix that may begin a stop text is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self._is_over = False

    def add(self, text: str, *, is_last: bool = False) -> str:
        """The text that is now certain to be part of the answer."""
        if not self._stops or self._is_over:
            return "" if self._is_over else text
        self._held += text
        ends = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if ends:
            self._is_over = True
            return self._held[: min(ends)]
        size = len(self._held) if is_last else len(self._held) - self._num_held()
        given, self._held = self._held[:size], self._held[size:]
        return given

    def _num_held(self) -> int:
        """Characters at the end that may begin a stop."""
        most = min(self._longest - 1, len(self._held))
        tails = ((n, self._held[-n:]) for n in range(most, 0, -1))
        return next(
            (n for n, tail in tails if any(stop.startswith(tail) for stop in self._stops)), 0
        )
