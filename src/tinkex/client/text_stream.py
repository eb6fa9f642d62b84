"""Text of tokens that come a few at a time. A character of several tokens is shown once whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

__all__ = ["TextStream"]

_UNFINISHED = "\ufffd"
"""What the bytes of a character decode to that are not all there."""

_MOST_TOKENS = 4
"""Of a character: a token is at least a byte of it."""


class Decodes(Protocol):
    """Makes a text of token ids, as `tinkex` and `transformers` tokenizers do."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class TextStream:
    """The text of one sequence, piece by piece. All pieces together are the text of all tokens.

    ```python
    text = tinkex.TextStream(sampler.get_tokenizer())
    for delta in sampler.sample(prompt, 1, params, stream=True):
        print(text.add(delta.tokens), end="", flush=True)
    print(text.end())
    ```

    A few tokens before the new ones are decoded with them: what some tokens look like, such as a
    space at the beginning, depends on those before.
    """

    def __init__(self, tokenizer: Decodes, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._context: list[int] = []  # the last tokens whose text was given
        self._open: list[int] = []  # tokens whose text was not given yet

    def add(self, tokens: Iterable[int]) -> str:
        """The text that is certain with these tokens; the empty text if none is."""
        self._open += tokens
        text = self._new_text()
        if text.endswith(_UNFINISHED):
            return self._give_finished()
        return self._give(len(self._open), text)

    def end(self) -> str:
        """What is left at the end of the sequence."""
        return self._give(len(self._open), self._new_text())

    def _give_finished(self) -> str:
        """The text of all but the last tokens, which make no whole character yet."""
        for count in range(len(self._open) - 1, max(0, len(self._open) - _MOST_TOKENS), -1):
            text = self._new_text(count)
            if not text.endswith(_UNFINISHED):
                return self._give(count, text)
        return ""

    def _new_text(self, count: int | None = None) -> str:
        """The text of the first open tokens."""
        before = self._decode(self._context)
        return self._decode([*self._context, *self._open[:count]])[len(before) :]

    def _give(self, count: int, text: str) -> str:
        if text:
            self._context, self._open = self._open[:count], self._open[count:]
        return text

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=self._skips)
