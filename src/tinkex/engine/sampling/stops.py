"""Stop conditions of a generation: token ids, and strings that may span several tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tinkex.types.sampling import SamplingParams

__all__ = ["StopRule", "Stops", "TextDecoder", "load_text_decoder"]

TextDecoder = Callable[[Sequence[int]], str]


class Stops(NamedTuple):
    """The stop conditions of an answer: strings, token ids, and whether the
    end-of-sequence token stops."""

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    at_eos: bool = True

    @classmethod
    def of(cls, params: SamplingParams) -> Stops:
        """Returns the conditions that `stop` stands for.

        Without it the end-of-sequence token stops; with `[]` nothing does; strings stop beside
        that token, token ids instead of it.
        """
        stop = params.stop
        if stop is None:
            return cls()
        listed = [stop] if isinstance(stop, str) else list(stop)
        strings = tuple(item for item in listed if isinstance(item, str))
        token_ids = tuple(item for item in listed if not isinstance(item, str))
        return cls(strings, token_ids, bool(strings))


class StopRule:
    """Decides whether the newest token ends the generation. One per sequence or
    shared by several."""

    def __init__(
        self, token_ids: frozenset[int], strings: Sequence[str], decode: TextDecoder
    ) -> None:
        self._token_ids = token_ids
        self._strings = tuple(strings)
        self._decode = decode
        # A token is at least a byte, so this many tokens hold any stop string; the few more are
        # for a character begun before it, which would else decode to something different.
        longest = max((len(text.encode()) for text in self._strings), default=0)
        self._tail = longest + 4

    def is_met(self, generated: Sequence[int]) -> bool:
        """Whether the generation ends with its newest token."""
        if generated[-1] in self._token_ids:
            return True
        if not self._strings:
            return False
        text = self._decode(generated[-self._tail :])
        return any(string in text for string in self._strings)


def load_text_decoder(folder: Path) -> TextDecoder | None:
    """Returns a decoder of token ids by the folder's tokenizer.json, special tokens included; None
    without that file."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    return decode
