"""Tokenizers in tiktoken files: ranks of byte strings, without a `tokenizer.json`.

Such a file says neither how text is split nor which tokens are special. Models ship Python code for
that, which is never run here; what it says is written down below for each known tokenizer class,
and the special tokens are in `tokenizer_config.json`. Needs the package `tiktoken`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tiktoken import Encoding

__all__ = ["FILE", "Layout", "TiktokenBackend", "layout_of", "read_tiktoken"]

FILE: Final = "tiktoken.model"
_MAX_ENCODE_CHARS: Final = 400_000
"""Maximum characters of one text: the Rust code fails on much longer texts."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The facts in the code of a tokenizer class: the pattern that splits text, and
    its reserved ids."""

    pattern: str
    num_reserved: int
    max_run: int
    """A longer run of characters that are all white space, or all not, is encoded in parts."""


_MOONSHOT: Final = Layout(
    pattern="|".join(
        (
            r"[\p{Han}]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
    num_reserved=256,
    max_run=25_000,
)

LAYOUTS: Final[Mapping[str, Layout]] = {
    "tokenization_kimi.TikTokenTokenizer": _MOONSHOT,  # Kimi K2 and its successors
    "tokenization_moonshot.TikTokenTokenizer": _MOONSHOT,  # Moonlight
}
"""Layouts by the class that `auto_map` of `tokenizer_config.json` names."""


def layout_of(settings: Mapping[str, Any]) -> Layout:
    """Returns the layout of the tokenizer class that `tokenizer_config.json` names.

    Raises:
        ValueError: the class is unknown, or none is named.
    """
    named = (settings.get("auto_map") or {}).get("AutoTokenizer")
    names = [named] if isinstance(named, str) else list(named or ())
    for name in names:
        # A name of another repository is `owner/name--module.Class`.
        if isinstance(name, str) and (known := LAYOUTS.get(name.rpartition("--")[2])):
            return known
    raise ValueError(
        f"it comes as {FILE} for the tokenizer class {names[0] if names else None!r}, and how that "
        f"one splits text is not known; known are {', '.join(LAYOUTS)}"
    )


def read_tiktoken(folder: Path, settings: Mapping[str, Any]) -> TiktokenBackend:
    """Loads the tokenizer of a folder with a tiktoken file.

    Raises:
        ValueError: the file is damaged, or its class is not known.
        ImportError: `tiktoken` is not installed.
    """
    from tiktoken import Encoding

    layout = layout_of(settings)
    ranks = _read_ranks(folder / FILE)
    specials, skipped = _special_tokens(settings, len(ranks), layout.num_reserved)
    encoding = Encoding(
        name=folder.name, pat_str=layout.pattern, mergeable_ranks=ranks, special_tokens=specials
    )
    return TiktokenBackend(encoding, specials, skipped, layout.max_run)


def _read_ranks(path: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ValueError(f"line {number} of {FILE} is no token and rank") from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError(f"the ranks of {FILE} are not 0 to {len(ranks) - 1}, each once")
    return ranks


def _special_tokens(
    settings: Mapping[str, Any], first: int, count: int
) -> tuple[dict[str, int], frozenset[int]]:
    """Returns the tokens after those of the file, by content, and which of them
    decoding may skip."""
    named = {int(key): each for key, each in (settings.get("added_tokens_decoder") or {}).items()}
    tokens = {
        named[each]["content"] if each in named else f"<|reserved_token_{each}|>": each
        for each in range(first, first + count)
    }
    tokens |= {each["content"]: key for key, each in named.items() if key >= first + count}
    plain = {key for key, each in named.items() if not each.get("special", False)}
    return tokens, frozenset(tokens.values()) - plain


@dataclass(frozen=True, slots=True)
class Encoded:
    """The result of `TiktokenBackend.encode`, with the fields that are used
    of `tokenizers`' own."""

    ids: list[int]


class TiktokenBackend:
    """A tiktoken encoding with the calls of a backend of `tokenizers`."""

    def __init__(
        self, encoding: Encoding, specials: Mapping[str, int], skipped: frozenset[int], max_run: int
    ) -> None:
        self._encoding = encoding
        self._specials = dict(specials)
        self._skipped = skipped
        self._max_run = max_run

    def no_truncation(self) -> None:
        """Does nothing: nothing is ever truncated."""

    def no_padding(self) -> None:
        """Does nothing: nothing is ever padded."""

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoded:
        """Encodes a text; names of special tokens in it are encoded as these. None are added."""
        try:
            text.encode()  # tiktoken would replace half a character; `tokenizers` refuses it
        except UnicodeEncodeError as error:
            raise TypeError(str(error)) from error
        ids: list[int] = []
        for part in parts_of(text, self._max_run):
            ids += self._encoding.encode(part, allowed_special="all")
        return Encoded(ids)

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """Returns the text of ids; unknown ids are left out."""
        if any(not 0 <= each < 2**32 for each in ids):
            raise OverflowError("out of range")
        left_out = self._skipped if skip_special_tokens else frozenset[int]()
        known = [each for each in ids if each < self._encoding.n_vocab and each not in left_out]
        return self._encoding.decode(known, errors="replace")

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Returns the number of tokens, with the special ones or without."""
        size = self._encoding.n_vocab
        return size if with_added_tokens else size - len(self._specials)

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids that `decode` leaves out with `skip_special_tokens`."""
        return self._skipped

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one token; empty for an id that the vocabulary does not have."""
        try:
            return self._encoding.decode_single_token_bytes(token_id)
        except (KeyError, OverflowError):
            return b""

    def id_to_token(self, token_id: int) -> str | None:
        """Returns one token as text, with incomplete characters replaced; None if there is none."""
        return self.token_bytes(token_id).decode(errors="replace") or None

    def token_to_id(self, token: str) -> int | None:
        """Returns the id of one token, or None if it is unknown."""
        if token in self._specials:
            return self._specials[token]
        try:
            return self._encoding.encode_single_token(token)
        except KeyError:
            return None


def parts_of(text: str, max_run: int) -> Iterator[str]:
    """Yields a text in parts that are encoded alone: bounded, and without very long
    runs of one kind."""
    for start in range(0, len(text), _MAX_ENCODE_CHARS):
        yield from _bounded_runs(text[start : start + _MAX_ENCODE_CHARS], max_run)


def _bounded_runs(text: str, max_run: int) -> Iterator[str]:
    """Yields a text, cut where a run of white space, or of anything else, becomes
    longer than allowed."""
    if len(text) <= max_run:
        yield text
        return
    start = run = 0
    was_space: bool | None = None
    for place, char in enumerate(text):
        is_space = char.isspace()
        run = run + 1 if is_space is was_space else 1
        was_space = is_space
        if run > max_run:
            yield text[start:place]
            start, run = place, 1
    yield text[start:]
