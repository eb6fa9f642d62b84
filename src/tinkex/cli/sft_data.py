"""Conversations and prompt/completion pairs as training examples.

Each line of a JSONL file is one of

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"prompt": "...", "completion": "..."}          (texts, or lists of messages)

Loss is taken on what the assistant says, end marker included, and on nothing else. Reading needs
no tokenizer, so that a bad line is found before anything is sent. Knows nothing of servers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tinkex.errors import ValidationError
from tinkex.types._conversation import encode_answers

if TYPE_CHECKING:
    from tinkex.tokenizers.tokenizer import Tokenizer
    from tinkex.types.datum import Datum

_FORMS = (
    'A line is {"messages": [{"role": ..., "content": ...}, ...]} with an assistant\'s message, '
    'or {"prompt": "...", "completion": "..."}.'
)
_ROLES = ("system", "developer", "user", "assistant", "tool")


class Record(NamedTuple):
    """One line of the file: a conversation, or a prompt and its completion as plain texts."""

    line: int
    messages: list[dict[str, Any]]
    texts: tuple[str, str] | None = None
    tools: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids, and for each whether its prediction counts in the loss."""

    tokens: list[int]
    is_learned: list[bool]

    @property
    def num_learned(self) -> int:
        """The number of tokens that count in the loss; the first has no context to
        predict it from."""
        return sum(self.is_learned[1:])

    def cut(self, max_length: int) -> Example:
        """Returns the example, cut to the length."""
        return Example(self.tokens[:max_length], self.is_learned[:max_length])

    def to_datum(self) -> Datum:
        """Returns the example as a datum: shifted by one, weight 1 where the token counts
        in the loss."""
        from tinkex.types.datum import Datum
        from tinkex.types.model_input import ModelInput

        return Datum(
            ModelInput.from_ints(self.tokens[:-1]),
            {
                "target_tokens": self.tokens[1:],
                "weights": [float(each) for each in self.is_learned[1:]],
            },
        )


class DataSet(NamedTuple):
    """The examples to train on, and counts of those that were cut or left out."""

    examples: list[Example]
    num_cut: int
    num_skipped: int

    @property
    def num_tokens(self) -> int:
        """The number of tokens of one epoch."""
        return sum(len(each.tokens) for each in self.examples)


def sha256_of(path: Path) -> str:
    """Returns the hash by which a resumed run checks that its data are the same."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_records(path: Path) -> list[Record]:
    """Returns all lines of a file, checked.

    Raises:
        ValidationError: a line is malformed (the message names it), or there are no lines.
    """
    records: list[Record] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                records.append(_read(line, number, path))
    if not records:
        raise ValidationError(f"{path} holds no examples.", hint=_FORMS, code="bad-data")
    return records


def encode(
    records: Sequence[Record], tokenizer: Tokenizer, *, is_plain: bool, max_length: int | None
) -> DataSet:
    """Returns the records as examples, cut to the length, without those with nothing to learn.

    Raises:
        ValidationError: no record is of use, or the chat template refuses one.
    """
    examples: list[Example] = []
    num_cut = num_skipped = 0
    for record in records:
        for example in _encode_one(record, tokenizer, is_plain):
            if max_length is not None and len(example.tokens) > max_length:
                example, num_cut = example.cut(max_length), num_cut + 1
            if example.num_learned:
                examples.append(example)
            else:
                num_skipped += 1
    if not examples:
        raise ValidationError(
            "No example has anything to learn.",
            hint="Completions are empty, or cut away: raise --max-length.",
            code="bad-data",
        )
    return DataSet(examples, num_cut, num_skipped)


# Reading -----------------------------------------------------------------------------------------


def _read(line: bytes, number: int, path: Path) -> Record:
    def refuse(problem: str) -> ValidationError:
        return ValidationError(f"{path}, line {number}: {problem}.", hint=_FORMS, code="bad-data")

    value = _parse(line, refuse)
    if not isinstance(value, dict):
        raise refuse("this is not a JSON object")
    tools = value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise refuse("'tools' is not a list")
    if "messages" in value:
        messages = value["messages"]
    elif "prompt" in value and "completion" in value:
        prompt, completion = value["prompt"], value["completion"]
        if isinstance(prompt, str) and isinstance(completion, str):
            return Record(number, _as_chat(prompt, completion), (prompt, completion), tools)
        if not (isinstance(prompt, list) and isinstance(completion, list)):
            raise refuse("'prompt' and 'completion' are neither both texts nor both messages")
        messages = [*({**each, "weight": 0} for each in _checked(prompt, refuse)), *completion]
    else:
        raise refuse(
            f"there is neither 'messages' nor 'prompt' and 'completion', but {_keys(value)}"
        )
    checked = _checked(messages, refuse)
    if not any(_is_learned(message) for message in checked):
        raise refuse("there is no assistant's message to learn")
    return Record(number, checked, None, tools)


def _parse(line: bytes, refuse: Any) -> Any:
    """Parses the line as JSON and checks that all texts in it can be sent."""
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise refuse("this is nested too deeply") from None
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise refuse(f"a text has half a character, {half}: it cannot be UTF-8") from None
    except ValueError as error:
        raise refuse(f"this is not JSON: {error}") from None
    return value


def _checked(messages: Any, refuse: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise refuse("'messages' is not a list with something in it")
    return [_checked_message(each, place, refuse) for place, each in enumerate(messages, start=1)]


def _checked_message(message: Any, place: int, refuse: Any) -> dict[str, Any]:
    """Returns the message with its content as one text."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise refuse(f"message {place} has no role")
    if message["role"] not in _ROLES:
        known = ", ".join(_ROLES)
        raise refuse(f"message {place} has the role {message['role']!r}, not one of {known}")
    if "content" in message:
        return {**message, "content": _content(message, place, refuse)}
    if "tool_calls" not in message:
        raise refuse(f"message {place} has no content")
    return message


def _content(message: dict[str, Any], place: int, refuse: Any) -> str:
    """Returns the content as a text: templates write other types as Python does,
    brackets and all."""
    content = message["content"]
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(each, place, refuse) for each in content)
    if content is not None:
        raise refuse(f"'content' of message {place} is neither a text nor a list of text parts")
    if not message.get("tool_calls"):
        raise refuse(f"'content' of message {place} is null, without 'tool_calls' beside it")
    return ""


def _part(part: Any, place: int, refuse: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        kind = repr(part.get("type")) if isinstance(part, dict) else "no object"
        raise refuse(f"'content' of message {place} has a part that is {kind}, not 'text'")
    if not isinstance(part.get("text"), str):
        raise refuse(f"'content' of message {place} has a part whose 'text' is not a text")
    return str(part["text"])


def _as_chat(prompt: str, completion: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]


def _is_learned(message: Mapping[str, object]) -> bool:
    return message["role"] == "assistant" and message.get("weight") != 0


def _keys(value: dict[str, Any]) -> str:
    return ", ".join(repr(key) for key in list(value)[:5]) or "nothing"


# Encoding ----------------------------------------------------------------------------------------


def _encode_one(record: Record, tokenizer: Tokenizer, is_plain: bool) -> Iterator[Example]:
    if record.texts is not None and (is_plain or not tokenizer.chat_template):
        yield _plain_example(*record.texts, tokenizer)
        return
    if is_plain:
        raise ValidationError(
            f"Line {record.line} is a conversation, which needs the model's chat template.",
            hint="Leave out --plain, or write prompts and completions as texts.",
        )
    try:
        yield from _chat_examples(record, tokenizer)
    except ValidationError as error:
        raise ValidationError(
            f"Line {record.line}: {error.message}", hint=error.hint, code=error.code
        ) from error


def _plain_example(prompt: str, completion: str, tokenizer: Tokenizer) -> Example:
    before = tokenizer.encode(prompt)
    after = tokenizer.encode(completion, add_special_tokens=False)
    if tokenizer.eos_token_id is not None:
        after.append(tokenizer.eos_token_id)
    return Example([*before, *after], [False] * len(before) + [True] * len(after))


def _chat_examples(record: Record, tokenizer: Tokenizer) -> Iterator[Example]:
    places = [place for place, message in enumerate(record.messages) if _is_learned(message)]
    for tokens, is_learned in encode_answers(record.messages, places, record.tools, tokenizer):
        yield Example(tokens, is_learned)
