"""Text of tokens that come in pieces: no half character, and in the end the decoding of all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from tinkex.tokenizers.incremental_text import IncrementalText
from tinkex.tokenizers.token_bytes import TokenBytes, shown_token

TEXT = "Grüße, 日本語! 🙂🙃 the quick brown fox\n\tand so on"


def byte_fallback() -> Tokenizer:
    """A vocabulary of pieces as SentencePiece has them, and all bytes."""
    pieces = ["\u2581", "\u2581the", "a", "b", "ü", "日"]
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocab = {name: place for place, name in enumerate(names)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    parts = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = decoders.Sequence(parts)
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    return backend


def reader(backend: Tokenizer) -> tuple[Callable[[Sequence[int]], str], Callable[..., str | None]]:
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}

    def decode(ids: Sequence[int]) -> str:
        return str(backend.decode(list(ids), skip_special_tokens=True))

    return decode, lambda i: None if i in special else backend.id_to_token(i)


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
def test_random_tokens_in_pieces_give_the_decoding_of_all(kind: str, backend: Tokenizer) -> None:
    used = backend if kind == "byte-level" else byte_fallback()
    decode, token_of = reader(used)
    rng = random.Random(3)
    for _ in range(500):
        ids = [rng.randrange(used.get_vocab_size()) for _ in range(rng.randrange(80))]
        text, given, at = IncrementalText(decode, token_of), "", 0
        while at < len(ids):
            size = rng.randrange(1, 4)
            given += text.add(ids[at : at + size])
            at += size
        assert given + text.finish() == decode(ids)
        assert text.num_chars == len(decode(ids))


def test_no_half_character_is_given_out(backend: Tokenizer) -> None:
    ids = backend.encode(TEXT * 5).ids
    text = IncrementalText(*reader(backend))
    pieces = [text.add([each]) for each in ids]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == TEXT * 5
    assert text.finish() == ""
    assert max(map(len, pieces)) < 20, "it is given out as it comes"


def test_nothing_gives_nothing(backend: Tokenizer) -> None:
    text = IncrementalText(*reader(backend))
    assert text.add([]) == text.finish() == ""


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback"])
def test_bytes_of_tokens_are_those_of_the_text(kind: str, backend: Tokenizer) -> None:
    used = backend if kind == "byte-level" else byte_fallback()
    to_bytes = TokenBytes(used)
    text = TEXT if kind == "byte-level" else "ab日a"
    ids = used.encode(text, add_special_tokens=False).ids
    assert b"".join(map(to_bytes, ids)).decode() == text
    assert to_bytes(10**6) == b""


def test_special_tokens_and_pieces_have_bytes(backend: Tokenizer) -> None:
    def bytes_of(used: Tokenizer, token: str) -> bytes:
        place = used.token_to_id(token)
        assert place is not None
        return TokenBytes(used)(place)

    assert bytes_of(backend, "<|im_end|>") == b"<|im_end|>"
    assert bytes_of(byte_fallback(), "\u2581the") == b" the"
    assert bytes_of(byte_fallback(), "<0xE6>") == b"\xe6"


def test_a_vocabulary_without_a_decoder_is_taken_as_it_is() -> None:
    plain = Tokenizer(models.WordLevel({"a": 0, "ü": 1}, unk_token="a"))
    assert TokenBytes(plain)(1) == "ü".encode()


def test_a_byte_level_vocabulary_may_have_other_characters(backend: Tokenizer) -> None:
    other = Tokenizer(models.WordLevel({"日": 0}, unk_token="日"))
    other.decoder = decoders.ByteLevel()
    assert TokenBytes(other)(0) == "日".encode()


def test_half_characters_are_shown_as_bytes() -> None:
    assert shown_token("ü".encode()) == "ü"
    assert shown_token(b"\xe2\x82") == "bytes:\\xe2\\x82"
