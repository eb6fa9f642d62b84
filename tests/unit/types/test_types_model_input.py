"""ModelInput and its chunks."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from tinker import types as official

from tests.unit.wire.strategies import MODEL_INPUTS, token_ids
from tinkex.errors import TokenizerError, ValidationError
from tinkex.types import (
    DmelChunk,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
)


class FakeTokenizer:
    def encode(self, text: str) -> Any:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


@given(token_ids())
def test_tokens_survive(ids: list[int]) -> None:
    chunk = EncodedTextChunk(ids)
    assert (chunk.tokens, chunk.length) == (ids, len(ids))
    assert chunk.type == "encoded_text"
    assert EncodedTextChunk.from_bytes(chunk.raw) == chunk
    assert pickle.loads(pickle.dumps(chunk)) == chunk
    assert hash(EncodedTextChunk(tuple(ids))) == hash(chunk)
    assert chunk != ids


@pytest.mark.parametrize(
    "tokens", [(1, 2), range(1, 3), np.array([1, 2]), torch.tensor([1, 2]), iter([1, 2])]
)
def test_tokens_may_come_in_any_collection(tokens: Any) -> None:
    assert EncodedTextChunk(tokens=tokens).tokens == [1, 2]


@pytest.mark.parametrize(
    "tokens", [[-1], [2**31], [1.5], ["a"], "ab", [None], np.array([1.5]), 7], ids=repr
)
def test_what_is_no_token_is_refused(tokens: Any) -> None:
    with pytest.raises(ValidationError):
        EncodedTextChunk(tokens)


def test_torn_bytes_are_refused() -> None:
    with pytest.raises(ValidationError, match="whole number"):
        EncodedTextChunk.from_bytes(b"abc")


def test_repr_shows_the_tokens() -> None:
    assert repr(EncodedTextChunk([1, 2])) == "EncodedTextChunk(tokens=[1, 2])"


def test_images_have_a_length_only_if_it_was_given() -> None:
    for chunk in (
        ImageChunk(data=b"", format="png", expected_tokens=3),
        ImageAssetPointerChunk(location="x", format="jpeg", expected_tokens=3),
    ):
        assert chunk.length == 3
    for chunk in (
        ImageChunk(data=b"", format="png"),
        ImageAssetPointerChunk(location="x", format="jpeg"),
    ):
        with pytest.raises(ValidationError, match="expected_tokens"):
            assert chunk.length


def test_images_have_one_of_two_formats() -> None:
    with pytest.raises(ValidationError, match="gif"):
        ImageChunk(data=b"", format="gif")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="gif"):
        ImageAssetPointerChunk(location="", format="gif")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "dmel",
    [
        bytes([1, 2, 4, 3]) + bytes(12),
        bytes([254, 7, 2, 4, 3]) + bytes(12),
        bytes([0, 1, 0x80, 0x02]),
    ],
    ids=["plain", "constant", "two-byte dimension"],
)
def test_length_of_audio_is_the_official_one(dmel: bytes) -> None:
    assert DmelChunk(dmel=dmel).length == official.DmelChunk(dmel=dmel).length


def test_audio_without_dimensions_has_no_length() -> None:
    assert DmelChunk(dmel=bytes([0, 0])).length == 0


@pytest.mark.parametrize(
    "dmel", [b"", b"\xfe", b"\x09", b"\x01", b"\x01\x02", b"\x01\x80", b"\x01" + b"\xff" * 12]
)
def test_length_of_broken_audio_is_an_error(dmel: bytes) -> None:
    with pytest.raises(ValidationError, match="dmel"):
        assert DmelChunk(dmel=dmel).length


def test_input_grows_by_copies() -> None:
    start = ModelInput.from_ints([1])
    grown = start.append_int(2).append(EncodedTextChunk([3, 4]))
    assert (start.to_ints(), grown.to_ints(), grown.length) == ([1], [1, 2, 3, 4], 4)
    assert ModelInput.empty().to_ints() == []
    assert ModelInput.empty().length == 0


@given(MODEL_INPUTS)
def test_inputs_can_be_pickled(value: ModelInput) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


def test_images_have_no_tokens() -> None:
    value = ModelInput(chunks=[ImageChunk(data=b"", format="png", expected_tokens=2)])
    assert value.length == 2
    with pytest.raises(ValidationError, match="ImageChunk"):
        value.to_ints()


def test_input_is_made_of_chunks_only() -> None:
    with pytest.raises(ValidationError, match="from_ints"):
        ModelInput(chunks=[1, 2])  # type: ignore[list-item]


class _Encoding:
    ids = (7, 8)


class _FastTokenizer(FakeTokenizer):
    def encode(self, text: str) -> Any:
        return _Encoding()


class _BrokenTokenizer(FakeTokenizer):
    def encode(self, text: str) -> Any:
        raise RuntimeError("no vocabulary")


def test_text_is_encoded_by_any_tokenizer() -> None:
    assert ModelInput.from_text("ab", FakeTokenizer()).to_ints() == [97, 98]
    assert ModelInput.from_text("ab", _FastTokenizer()).to_ints() == [7, 8]
    with pytest.raises(TokenizerError, match="no vocabulary"):
        ModelInput.from_text("ab", _BrokenTokenizer())
