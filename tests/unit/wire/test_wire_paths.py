"""Paths are read strictly, because a server makes folders of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.errors import InvalidPathError, ValidationError
from tinkex.wire.paths import TinkerPath, is_checkpoint_name

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", fullmatch=True).filter(
    lambda name: ".." not in name
)
RUNS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}", fullmatch=True).filter(
    lambda name: ".." not in name
)
KINDS = ["weights", "sampler_weights", "external_weights"]


@given(RUNS, st.sampled_from(KINDS), NAMES)
def test_paths_survive_the_round_trip(run: str, kind: str, name: str) -> None:
    path = TinkerPath(run, kind, name)  # type: ignore[arg-type]
    assert TinkerPath.parse(str(path)) == path
    assert str(path) == f"tinker://{run}/{kind}/{name}"
    assert path.checkpoint_id == f"{kind}/{name}"


@pytest.mark.parametrize(
    ("kind", "type_"),
    [("weights", "training"), ("sampler_weights", "sampler"), ("external_weights", "external")],
)
def test_kind_says_what_the_checkpoint_is_for(kind: str, type_: str) -> None:
    assert TinkerPath.parse(f"tinker://s:train:0/{kind}/a").checkpoint_type == type_


BAD = [
    "",
    "run/weights/a",
    "tinker:/run/weights/a",
    "TINKER://run/weights/a",
    "https://run/weights/a",
    "tinker://",
    "tinker://run",
    "tinker://run/weights",
    "tinker://run/weights/",
    "tinker:///weights/a",
    "tinker://run//a",
    "tinker://run/weights/a/b",
    "tinker://run/weights/a/",
    "tinker://run/archive/a",
    "tinker://run/Weights/a",
    "tinker://run/weights/..",
    "tinker://run/weights/.hidden",
    "tinker://run/weights/a..b",
    "tinker://../weights/a",
    "tinker://run/weights/-rf",
    "tinker://run/weights/a:b",
    "tinker://run/weights/a b",
    "tinker://run/weights/a\\b",
    "tinker://run/weights/a\x00b",
    "tinker://run/weights/a\n",
    "tinker://run/weights/%2e%2e",
    "tinker://run%2fx/weights/a",
    "tinker://run/weights/é",
    "tinker://run/weights/a?x=1",
    "tinker://run/weights/a#x",
    "tinker://:run/weights/a",
    "tinker://run/weights/" + "a" * 129,
    "tinker://" + "a" * 129 + "/weights/a",
    " tinker://run/weights/a",
]


@pytest.mark.parametrize("text", BAD)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidPathError) as caught:
        TinkerPath.parse(text)
    assert caught.value.code == "invalid-path"
    assert isinstance(caught.value, ValidationError)


def test_parts_are_checked_without_parsing_too() -> None:
    for parts in (("a/b", "weights", "x"), ("a", "x", "y"), ("a", "weights", "../x")):
        with pytest.raises(InvalidPathError):
            TinkerPath(*parts)  # type: ignore[arg-type]


def test_message_does_not_repeat_a_long_text() -> None:
    with pytest.raises(InvalidPathError) as caught:
        TinkerPath.parse("tinker://" + "x" * 100_000)
    assert len(str(caught.value)) < 1000


@given(st.text(max_size=30))
def test_arbitrary_text_gives_paths_or_their_error(text: str) -> None:
    try:
        path = TinkerPath.parse(f"tinker://run/weights/{text}")
    except InvalidPathError:
        assert not is_checkpoint_name(text)
    else:
        assert path.name == text
        assert is_checkpoint_name(text)
