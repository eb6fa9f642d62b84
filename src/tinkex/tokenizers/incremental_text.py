"""Text of an answer decoded as its tokens arrive: never half a character, and in the end exactly
the decoding of all tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["IncrementalText"]

_UNFINISHED: Final = "\ufffd"
_BYTE_TOKEN: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_WINDOW: Final = 16  # tokens after which decoding starts at a later one


class IncrementalText:
    """Converts tokens to text as they arrive.

    Only tokens since the last safe place are decoded again: a place at which no character is
    unfinished, with the tokens before it still there as context, for decoders that strip a blank
    at the very beginning. `token_of` gives the vocabulary's entry of an id, None for one that
    `decode` leaves out. With it, runs of byte tokens (`<0xE2>`) are held back until they end,
    because a decoder may take a whole run for wrong that began well.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        token_of: Callable[[int], str | None] | None = None,
    ) -> None:
        self._decode = decode
        self._token_of = token_of
        self._ids: list[int] = []
        self._start = 0  # of the window that is decoded
        self._safe = 0  # tokens before this index end with a whole character
        self._given = 0  # characters of the window's text that were returned
        self.num_chars = 0

    def add(self, token_ids: Sequence[int]) -> str:
        """Returns the text that this token completes."""
        self._ids += token_ids
        return "".join(self._give(is_last=False)) if token_ids else ""

    def finish(self) -> str:
        """Returns the rest: characters that no token can complete any more."""
        return "".join(self._give(is_last=True))

    def _give(self, *, is_last: bool) -> list[str]:
        if not is_last and self._ends_in_bytes():
            return []
        text = self._decode(self._ids[self._start :])
        is_whole = not text.endswith(_UNFINISHED)
        certain = text if is_last else text.rstrip(_UNFINISHED)
        new = certain[self._given :]
        self._given = max(self._given, len(certain))
        self.num_chars += len(new)
        if is_whole:
            self._move_window()
        return [new]

    def _move_window(self) -> None:
        if len(self._ids) - self._start > _WINDOW and self._safe > self._start:
            self._start = self._safe
            self._given = len(self._decode(self._ids[self._start :]))
        self._safe = len(self._ids)

    def _ends_in_bytes(self) -> bool:
        if self._token_of is None:
            return False
        tokens = (self._token_of(each) for each in reversed(self._ids))
        last = next((token for token in tokens if token is not None), "")
        return _BYTE_TOKEN.fullmatch(last) is not None
