"""Tokenizers that come as a tiktoken file, judged by tiktoken itself and by a plain merge loop."""

from __future__ import annotations

import base64
import json
import pickle
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
import tiktoken

from tinkex.config import ProcessSettings
from tinkex.errors import TokenizerError, ValidationError
from tinkex.tokenizers.tiktoken_tokenizer import LAYOUTS
from tinkex.tokenizers.token_bytes import token_bytes_of
from tinkex.tokenizers.tokenizer import Tokenizer, load_tokenizer

HALF = "中".encode()[:2]
KIMI = "tokenization_kimi.TikTokenTokenizer"
MERGES = (
    "th",
    "the",
    " the",
    "in",
    "ing",
    HALF,
    "中",
    "中文",
    "12",
    "123",
    "  ",
    "'s",
)
NUM_RANKS = 256 + len(MERGES)
BOS, END, CALL = NUM_RANKS, NUM_RANKS + 2, NUM_RANKS + 5
TEXTS = (
    "",
    "the thing in the ring",
    "The CAT's things, it'S",
    "中文the中文 English中",
    "1234567 12",
    "  spaces   \r\n\n tabs\t\t ",
    "[BOS]the<|im_end|> ing",
    "<|tool_call_begin|>the<|reserved_token_269|>",
    "übergrößen 日本語 🙂 \x00\ud7ff",
)
SETTINGS = {
    "auto_map": {"AutoTokenizer": [KIMI, None]},
    "tokenizer_class": "TikTokenTokenizer",
    "bos_token": "[BOS]",
    "eos_token": "<|im_end|>",
    "chat_template": (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    ),
    "added_tokens_decoder": {
        str(BOS): {"content": "[BOS]", "special": True},
        str(END): {"content": "<|im_end|>", "special": True},
        str(CALL): {"content": "<|tool_call_begin|>", "special": False},
    },
}


def ranks() -> dict[bytes, int]:
    merged = [each if isinstance(each, bytes) else each.encode() for each in MERGES]
    tokens = [*(bytes([byte]) for byte in range(256)), *merged]
    return {token: rank for rank, token in enumerate(tokens)}


def specials() -> dict[str, int]:
    reserved = range(NUM_RANKS, NUM_RANKS + 256)
    named = {BOS: "[BOS]", END: "<|im_end|>", CALL: "<|tool_call_begin|>"}
    return {named.get(each, f"<|reserved_token_{each}|>"): each for each in reserved}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a folder as Kimi K2 has it, with other settings or lines."""

    def written(lines: bytes | None = None, **settings: Any) -> Path:
        rows = [base64.b64encode(token) + f" {rank}\n".encode() for token, rank in ranks().items()]
        (tmp_path / "tiktoken.model").write_bytes(b"".join(rows) if lines is None else lines)
        config = json.dumps({**SETTINGS, **settings})
        (tmp_path / "tokenizer_config.json").write_text(config)
        return tmp_path

    return written


@pytest.fixture
def tokenizer(make: Callable[..., Path]) -> Tokenizer:
    return load_tokenizer(str(make()))


@pytest.fixture(scope="module")
def judge() -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "judge",
        pat_str=LAYOUTS[KIMI].pattern,
        mergeable_ranks=ranks(),
        special_tokens=specials(),
    )


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_encoded_and_decoded_as_tiktoken_does(
    tokenizer: Tokenizer, judge: tiktoken.Encoding, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert ids == judge.encode(text, allowed_special="all")
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", [each for each in TEXTS if "<|" not in each])
def test_words_are_split_and_merged_by_the_rules(tokenizer: Tokenizer, text: str) -> None:
    """The same by a plain loop over the words that the module `regex` finds."""
    words = regex.findall(f"(?V1){LAYOUTS[KIMI].pattern}", text)
    assert "".join(words) == text
    assert tokenizer.encode(text) == [each for word in words for each in merged(word.encode())]


def merged(word: bytes) -> list[int]:
    """A known word is one token; else pairs are merged, that of the lowest rank first."""
    known, parts = ranks(), [bytes([byte]) for byte in word]
    if word in known:
        return [known[word]]
    while True:
        pairs = [(known.get(a + b), n) for n, (a, b) in enumerate(pairwise(parts))]
        found = min(((rank, n) for rank, n in pairs if rank is not None), default=None)
        if found is None:
            return [known[part] for part in parts]
        at = found[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_special_tokens_are_those_of_the_settings(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS, END)
    assert (tokenizer.vocab_size, len(tokenizer)) == (NUM_RANKS, NUM_RANKS + 256)
    ids = [BOS, *tokenizer.encode("the"), CALL, END, NUM_RANKS + 9]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the<|tool_call_begin|>"
    assert tokenizer.convert_tokens_to_ids(" the") == ranks()[b" the"]
    assert tokenizer.convert_tokens_to_ids("<|nothing|>") is None


def test_single_tokens_have_their_bytes(tokenizer: Tokenizer, judge: tiktoken.Encoding) -> None:
    to_bytes = token_bytes_of(tokenizer.backend)
    for token_id in range(judge.n_vocab):
        raw = judge.decode_single_token_bytes(token_id)
        assert to_bytes(token_id) == raw
        assert tokenizer.backend.id_to_token(token_id) == raw.decode(errors="replace")
    for unknown in (judge.n_vocab, 2**40):
        assert to_bytes(unknown) == b""
        assert tokenizer.backend.id_to_token(unknown) is None
    assert tokenizer.decode([END], skip_special_tokens=True) == ""
    assert END in tokenizer.special_ids


def test_conversations_are_rendered_with_its_template(tokenizer: Tokenizer) -> None:
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "the"}], add_generation_prompt=True
    )
    assert tokenizer.decode(ids) == "user: the<|im_end|>assistant: "
    assert END in ids


def test_endless_runs_are_encoded_in_parts(tokenizer: Tokenizer, judge: tiktoken.Encoding) -> None:
    """As the model's own code cuts them, since the pattern would take too long."""
    for char in ("a", " "):
        text = f"the {char * 60_000} in"
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a" * 60_000) == [*judge.encode("a" * 25_000) * 2, *[97] * 10_000]
    long = "the in " * 60_000
    assert tokenizer.decode(tokenizer.encode(long)) == long


def test_mistakes_are_distinguished_from_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([10**6, *tokenizer.encode("in")]) == "in"
    assert tokenizer.decode([ranks()[HALF]]) == "�"
    for ids in ([-1], [2**32]):
        with pytest.raises(ValidationError, match="Token ids must be numbers"):
            tokenizer.decode(ids)
    with pytest.raises(ValidationError, match="not valid Unicode"):
        tokenizer.encode("half \ud800")


def test_it_can_be_sent_to_another_process(tokenizer: Tokenizer) -> None:
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("the ring") == tokenizer.encode("the ring")


def test_it_is_found_in_the_hub_cache(tmp_path: Path, make: Callable[..., Path]) -> None:
    snapshot = tmp_path / "hub" / "models--moonshotai--Kimi-K2" / "snapshots" / "c0ffee"
    snapshot.parent.mkdir(parents=True)
    (source := tmp_path / "source").mkdir()
    make()
    for name in ("tiktoken.model", "tokenizer_config.json"):
        (tmp_path / name).rename(source / name)
    source.rename(snapshot)
    where = ProcessSettings(
        is_debug=False, has_color=False, hub_cache=tmp_path / "hub", is_hub_offline=True
    )
    assert load_tokenizer("moonshotai/Kimi-K2", settings=where).eos_token_id == END


@pytest.mark.parametrize("named", [KIMI, [f"moonshotai/Kimi-K2--{KIMI}", None]])
def test_the_class_may_be_named_in_several_ways(make: Callable[..., Path], named: Any) -> None:
    assert load_tokenizer(str(make(auto_map={"AutoTokenizer": named}))).encode("the") == [257]


@pytest.mark.parametrize(
    ("auto_map", "named"), [(None, "None"), ({"AutoTokenizer": ["a.Own", None]}, "'a.Own'")]
)
def test_code_that_comes_with_a_model_is_not_run(
    make: Callable[..., Path], auto_map: Any, named: str
) -> None:
    with pytest.raises(TokenizerError, match=f"class {named}, and how that one splits"):
        load_tokenizer(str(make(auto_map=auto_map)))


@pytest.mark.parametrize("lines", [b"dGhl 0\nnonsense\n", b"dGhl one\n", b"*** 0\n"])
def test_a_damaged_file_is_named_with_its_line(make: Callable[..., Path], lines: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"line \d of tiktoken.model is no token and rank"):
        load_tokenizer(str(make(lines)))


def test_ranks_must_be_complete(make: Callable[..., Path]) -> None:
    with pytest.raises(TokenizerError, match="are not 0 to 1, each once"):
        load_tokenizer(str(make(b"dGhl 0\n\nAA== 2\n")))


def test_without_the_package_the_extra_is_named(
    make: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(str(make()))
    assert 'pip install ".[tiktoken]"' in caught.value.hint
