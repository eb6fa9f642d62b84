"""The bytes of single tokens, whether they are whole characters or not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from tinkex.tokenizers.tiktoken_tokenizer import TiktokenBackend

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

__all__ = ["TokenBytes", "shown_token", "token_bytes_of"]

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Converts ids to bytes, by the tokenizer's own decoder: byte-level, or pieces
    with byte tokens."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._added = {
            index: token.content.encode()
            for index, token in backend.get_added_tokens_decoder().items()
        }
        self._of_piece = _reader(_decoder_kinds(backend))

    def __call__(self, token_id: int) -> bytes:
        """Returns the bytes of one token; empty for an id that the vocabulary does not have."""
        known = self._added.get(token_id)
        if known is not None:
            return known
        piece = self._backend.id_to_token(token_id)
        return b"" if piece is None else self._of_piece(piece)


def token_bytes_of(backend: Backend | TiktokenBackend) -> Callable[[int], bytes]:
    """Returns the conversion of ids to bytes, for a tokenizer of either kind."""
    if isinstance(backend, TiktokenBackend):
        return backend.token_bytes
    return TokenBytes(backend)


def shown_token(raw: bytes) -> str:
    """Returns a token as text; one with incomplete characters as `bytes:\\xe2\\x82`, as
    OpenAI shows it."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _decoder_kinds(backend: Backend) -> set[str]:
    """Returns the types of the decoders that make text of pieces."""
    if backend.decoder is None:
        return set()

    def kinds(state: Any) -> set[str]:
        inner = [kinds(each) for each in state.get("decoders", ())]
        return {state.get("type", "")}.union(*inner)

    return kinds(json.loads(backend.decoder.__getstate__()))


def _reader(kinds: set[str]) -> Callable[[str], bytes]:
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" in kinds or "Metaspace" in kinds:
        return _sentence_piece
    return str.encode


def _byte_level(piece: str) -> bytes:
    table = _byte_of_char()
    if all(char in table for char in piece):
        return bytes(table[char] for char in piece)
    return piece.encode()


def _sentence_piece(piece: str) -> bytes:
    if found := _BYTE_TOKEN.fullmatch(piece):
        return bytes([int(found[1], 16)])
    return piece.replace("\u2581", " ").encode()


@lru_cache(maxsize=1)
def _byte_of_char() -> dict[str, int]:
    """Returns the printable characters that stand for bytes in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    return chars | {chr(256 + place): byte for place, byte in enumerate(hidden)}
