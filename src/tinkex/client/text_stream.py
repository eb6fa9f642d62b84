"""Text of tokens that come a few at a time. A character of several tokens is shown once whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tinkex.tokenizers.incremental_text import IncrementalText

__all__ = ["TextStream"]


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
    """

    def __init__(self, tokenizer: Decodes, *, skip_special_tokens: bool = True) -> None:
        self._text = IncrementalText(
            lambda token_ids: tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        )

    def __repr__(self) -> str:
        return f"<TextStream of {self._text.num_chars} characters so far>"

    def add(self, tokens: Iterable[int]) -> str:
        """The text that is certain with these tokens; the empty text if none is."""
        return self._text.add(list(tokens))

    def end(self) -> str:
        """What is left at the end of the sequence."""
        return self._text.finish()
