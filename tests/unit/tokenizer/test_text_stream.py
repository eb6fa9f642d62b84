"""Text of tokens that come a few at a time: the text of all of them, and never half a character."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from tinkex.client.text_stream import TextStream
from tinkex.tokenizers.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "the quick brown fox",
    "  leading and trailing  ",
    "übergrößenträger 日本語 🙂👩‍👩‍👧 done",
    "<|im_start|>user\nhello<|im_end|>\n",
    "It's , isn't it ? No .",
]


def _metaspace() -> Tokenizer:
    """A tokenizer that marks the beginning of words and drops the first space of a text."""
    words = {"▁the": 0, "▁quick": 1, "▁fox": 2, "es": 3, "▁": 4, "<unk>": 5}
    backend = Backend(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return Tokenizer(backend)


@pytest.fixture(params=[True, False], ids=["cleaning up", "plain"])
def tokenizer(request, make_folder) -> Tokenizer:
    return load_tokenizer(str(make_folder(clean_up_tokenization_spaces=request.param)))


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_are_the_whole_text(tokenizer: Tokenizer, text: str, size: int) -> None:
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer)
    pieces = [stream.add(ids[at : at + size]) for at in range(0, len(ids), size)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + stream.end() == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_character_of_several_tokens_comes_once_it_is_whole(make_folder) -> None:
    tokenizer = load_tokenizer(str(make_folder()))
    ids = tokenizer.encode("日", add_special_tokens=False)
    assert len(ids) > 1
    stream = TextStream(tokenizer)
    assert [stream.add([each]) for each in ids] == [*[""] * (len(ids) - 1), "日"]
    (letter,) = tokenizer.encode("x", add_special_tokens=False)
    assert stream.add([letter, *ids[:-1]]) == "x", "what is certain is not held back"
    assert stream.end() == "\ufffd", "and at the end it is told that something is missing"


def test_spaces_between_words_are_kept() -> None:
    stream = TextStream(_metaspace())
    assert [stream.add([each]) for each in (0, 1, 2, 3)] == ["the", " quick", " fox", "es"]


def test_special_tokens_are_shown_if_they_should_be(make_folder) -> None:
    tokenizer = load_tokenizer(str(make_folder()))
    ids = tokenizer.encode("<|im_start|>hello<|im_end|>", add_special_tokens=False)
    shown = TextStream(tokenizer, skip_special_tokens=False)
    assert "".join(shown.add([each]) for each in ids) == "<|im_start|>hello<|im_end|>"


def test_any_tokens_at_all_give_their_text(make_folder) -> None:
    tokenizer = load_tokenizer(str(make_folder()))
    draw = random.Random(3)
    for _ in range(200):
        ids = [draw.randrange(3, 300) for _ in range(draw.randrange(1, 30))]
        stream = TextStream(tokenizer)
        text = "".join(stream.add([each]) for each in ids) + stream.end()
        assert text == tokenizer.decode(ids, skip_special_tokens=True)
