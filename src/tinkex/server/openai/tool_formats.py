"""Tool calls in the formats that models write: detected in the chat template, parsed in answers.

Pure. An unknown format is refused before sampling, so that a tool call is never returned as text.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

__all__ = ["ParsedAnswer", "ParsedCall", "ToolFormat", "tool_format_of"]

_DECODER: Final = json.JSONDecoder()
_LETTERS: Final = string.ascii_letters + string.digits


class ParsedCall(NamedTuple):
    """One call: the function's name, and its arguments as JSON."""

    name: str
    arguments: str


class ParsedAnswer(NamedTuple):
    """An answer's calls, and the text before them; the whole text if no call is well-formed."""

    content: str
    calls: tuple[ParsedCall, ...] = ()


class ToolFormat(ABC):
    """How one family of models writes calls."""

    marker: str

    @abstractmethod
    def _calls(self, text: str) -> list[ParsedCall]:
        """The calls in a text that begins with the marker.

        Raises:
            ValueError: it is not well-formed.
        """

    def starts_at(self, text: str) -> int:
        """Where calls begin in the text so far, or may begin once more text follows."""
        found = text.find(self.marker)
        if found >= 0:
            return found
        longest = min(len(self.marker) - 1, len(text))
        sizes = range(longest, 0, -1)
        size = next((n for n in sizes if self.marker.startswith(text[-n:])), 0)
        return len(text) - size

    def parse(self, text: str) -> ParsedAnswer:
        """The calls in a whole answer, special tokens included."""
        start = self.starts_at(text)
        try:
            calls = self._calls(text[start:]) if self._is_marked(text[start:]) else []
        except ValueError:
            calls = []
        return ParsedAnswer(text[:start].strip(), tuple(calls)) if calls else ParsedAnswer(text)

    def new_id(self) -> str:
        """A new call id in the form that the model's template accepts."""
        return f"call_{secrets.token_hex(12)}"

    def _is_marked(self, text: str) -> bool:
        return text.startswith(self.marker)


class HermesFormat(ToolFormat):
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Qwen, Hermes, SmolLM."""

    marker = "<tool_call>"
    _end = "</tool_call>"

    def _calls(self, text: str) -> list[ParsedCall]:
        calls, rest = [], text
        while rest.startswith(self.marker):
            value, rest = _json_at(rest.removeprefix(self.marker))
            calls.append(_call(value))
            rest = rest.lstrip()
            if not rest.startswith(self._end) and rest:
                raise ValueError("a call does not end")
            rest = rest.removeprefix(self._end).lstrip()
        return calls


class PhiFormat(ToolFormat):
    """`<|tool_call|>[{"name": ..., "arguments": ...}]<|/tool_call|>`: Phi-4-mini."""

    marker = "<|tool_call|>"

    def _calls(self, text: str) -> list[ParsedCall]:
        values, _ = _json_at(text.removeprefix(self.marker))
        return [_call(value) for value in _list(values)]


class MistralFormat(ToolFormat):
    """`[TOOL_CALLS][{"name": ..., "arguments": ...}]`, or `[TOOL_CALLS]name[ARGS]{...}`."""

    marker = "[TOOL_CALLS]"
    _named = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*")

    def _calls(self, text: str) -> list[ParsedCall]:
        body = text.removeprefix(self.marker)
        if body.lstrip().startswith("["):
            values, _ = _json_at(body)
            return [_call(value) for value in _list(values)]
        return list(self._one_by_one(body))

    def _one_by_one(self, body: str) -> Iterator[ParsedCall]:
        rest = body
        while found := self._named.match(rest):
            arguments, rest = _json_at(rest[found.end() :])
            yield _call({"name": found[1], "arguments": arguments})
            rest = rest.lstrip().removeprefix(self.marker)

    def new_id(self) -> str:
        """Nine letters and digits: the template of these models accepts no other id."""
        return "".join(secrets.choice(_LETTERS) for _ in range(9))


class LlamaFormat(ToolFormat):
    """`{"name": ..., "parameters": {...}}` as the whole answer, several with `;`: Llama 3."""

    marker = "<|python_tag|>"

    def starts_at(self, text: str) -> int:
        """A call begins at the answer's first character or not at all."""
        bare = text.lstrip()
        is_open = bare.startswith("{") or bare.startswith(self.marker[: len(bare)])
        is_call = is_open or bare.startswith(self.marker)
        return len(text) - len(bare) if is_call else len(text)

    def _is_marked(self, text: str) -> bool:
        return bool(text)

    def _calls(self, text: str) -> list[ParsedCall]:
        calls, rest = [], text.removeprefix(self.marker)
        while rest.strip():
            value, rest = _json_at(rest)
            calls.append(_call(value, "parameters"))
            rest = rest.lstrip()
            if rest and not rest.startswith((";", self.marker)):
                raise ValueError("text follows the call")
            rest = rest.removeprefix(";").lstrip().removeprefix(self.marker)
        return calls


def tool_format_of(template: str) -> ToolFormat | None:
    """The tool call format of a chat template; None if it has none, or an unknown one."""
    if "tools" not in template:
        return None
    if "[TOOL_CALLS]" in template:
        return MistralFormat()
    if "<tool_call>" in template:
        return None if "<function=" in template else HermesFormat()
    if "<|tool_call|>" in template:
        return PhiFormat()
    if '"parameters": ' in template and ("<|python_tag|>" in template or "ipython" in template):
        return LlamaFormat()
    return None


def _json_at(text: str) -> tuple[Any, str]:
    """The JSON value that a text begins with, and the rest."""
    bare = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(bare)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value, bare[end:]


def _call(value: Any, arguments: str = "arguments") -> ParsedCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("a call without a name")
    given = value.get(arguments, value.get("parameters", {}))
    if isinstance(given, str):
        given = json.loads(given)
    if not isinstance(given, dict):
        raise ValueError("arguments that are no object")
    if arguments == "parameters" and "parameters" not in value:
        raise ValueError("a call without parameters")
    return ParsedCall(value["name"], json.dumps(given, ensure_ascii=False))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
