"""Converts conversations to tokens, and marks those that belong to the assistant's answers.

Answers are encoded apart from what is around them, as they are when a model is sampled from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tinkex.errors import ValidationError

__all__ = ["ChatTokenizer", "Message", "encode_answers", "learned_places"]

Message = Mapping[str, Any]


class ChatTokenizer(Protocol):
    """A tokenizer with a chat template: one of `get_tokenizer`, or of transformers."""

    @property
    def encode(self) -> Callable[..., Any]:
        """Returns the token ids of a text; called with `add_special_tokens`."""
        ...

    @property
    def apply_chat_template(self) -> Callable[..., Any]:
        """Returns the conversation as one text; called with messages,
        tools and `tokenize=False`."""
        ...


def learned_places(messages: Sequence[Message]) -> list[int]:
    """Returns the positions of the assistant's messages, except those with a weight of 0.

    Raises:
        ValidationError: something is no message, or nothing is to be learned.
    """
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValidationError(
                f"Message {place} is {message!r}, not a dict with a role.",
                hint='Write messages as {"role": "user", "content": "..."}.',
            )
    places = [
        place
        for place, message in enumerate(messages)
        if message["role"] == "assistant" and message.get("weight") != 0
    ]
    if not places:
        raise ValidationError("There is no assistant's message to learn in the conversation.")
    return places


def encode_answers(
    messages: Sequence[Message],
    places: Sequence[int],
    tools: Sequence[Any] | None,
    tokenizer: ChatTokenizer,
) -> list[tuple[list[int], list[bool]]]:
    """Returns token ids, and for each whether it belongs to the answer at one of the positions.

    The whole conversation is one example if its turns are pieces of one text, else each turn is.
    They are not where a template renders a turn differently once others follow, as those do that
    drop the reasoning of earlier turns: a model never sees such a text when it is sampled from.
    """
    plain = [
        {name: value for name, value in message.items() if name != "weight"} for message in messages
    ]
    turns = [_turn(plain, place, tools, tokenizer) for place in places]
    whole = turns[-1].text
    if all(whole.startswith(turn.text) for turn in turns):
        return [_pieces(whole, turns, tokenizer)]
    return [_pieces(turn.text, [turn], tokenizer) for turn in turns]


class _Turn(NamedTuple):
    """The conversation up to and with one answer, and the position of the answer in it."""

    text: str
    start: int
    end: int


def _turn(
    messages: list[dict[str, Any]],
    place: int,
    tools: Sequence[Any] | None,
    tokenizer: ChatTokenizer,
) -> _Turn:
    def render(upto: int, **options: Any) -> str:
        return str(tokenizer.apply_chat_template(messages[:upto], tools, tokenize=False, **options))

    prompt = render(place, add_generation_prompt=True) if place else ""
    text = render(place + 1)
    # Usually all of `prompt`; templates that open a reasoning block in it differ at its end.
    start = len(_common_start(prompt, text))
    # What follows the end marker (a line end, mostly) comes after the model has stopped.
    return _Turn(text, start, max(start, len(text.rstrip())))


def _common_start(one: str, other: str) -> str:
    if other.startswith(one):
        return one
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: sum(1 for _ in same)]


def _pieces(
    text: str, turns: Sequence[_Turn], tokenizer: ChatTokenizer
) -> tuple[list[int], list[bool]]:
    tokens: list[int] = []
    is_learned: list[bool] = []

    def add(piece: str, learned: bool) -> None:
        ids = tokenizer.encode(piece, add_special_tokens=False) if piece else []
        tokens.extend(ids)
        is_learned.extend([learned] * len(ids))

    at = 0
    for turn in turns:
        add(text[at : turn.start], False)
        add(text[turn.start : turn.end], True)
        at = turn.end
    return tokens, is_learned
