"""Conversations as text, by a model's own chat template.

Gives the text that Hugging Face Transformers gives for the same template, without needing it.
Templates come with models from anywhere, so they run in Jinja's sandbox and see plain values
only. Knows nothing of tokens. Jinja is imported at the first use.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tinkex.errors import ValidationError

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
# Ends in a space: whether the space survives shows whether the template trims messages.
_END_MARK: Final = "\ue000the final message ends here\ue000 "


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Renders the conversation as one text; `variables` are further names the template may use.

    >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    >>> render_chat(template, [{"role": "user", "content": "hello"}])
    '<user>hello'

    Raises:
        ValidationError: the conversation is empty or malformed, or the template refuses it.
    """
    chat = _checked(messages)
    if continue_final_message:
        if add_generation_prompt:
            raise _refused("continue_final_message and add_generation_prompt exclude each other")
        _mark_end(chat)
    names = {
        **_plain(variables or {}),
        "messages": chat,
        "tools": _plain(tools),
        "documents": _plain(documents),
        "add_generation_prompt": add_generation_prompt,
    }
    text = _render(template, names)
    return _cut_at_mark(text) if continue_final_message else text


def read_templates(folder: Path, stored: Any) -> str | dict[str, str] | None:
    """Returns a model's templates: its `.jinja` files, else those in
    its `tokenizer_config.json`."""
    templates = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if (main := folder / "chat_template.jinja").is_file():
        templates["default"] = main.read_text(encoding="utf-8")
    if templates:
        return templates["default"] if set(templates) == {"default"} else templates
    if isinstance(stored, list):
        return {each["name"]: each["template"] for each in stored}
    return stored if isinstance(stored, str) else None


def choose_template(
    own: str | Mapping[str, str] | None, wanted: str | None, *, has_tools: bool
) -> str:
    """Returns the template to use: `wanted` is a template or the name of one of the model's `own`.

    Raises:
        ValidationError: none is named and the model has no template, or no default one.
    """
    named = {"default": own} if isinstance(own, str) else dict(own or {})
    if wanted is not None:
        return named.get(wanted, wanted)
    name = "tool_use" if has_tools and "tool_use" in named else "default"
    if name in named:
        return named[name]
    raise ValidationError(
        "The tokenizer has no chat template.",
        hint=f"Pass chat_template=, one of: {', '.join(named)}."
        if named
        else "Pass chat_template=, or encode a plain text: base models have none.",
        code="no-chat-template",
    )


def _render(template: str, names: dict[str, Any]) -> str:
    from jinja2 import TemplateError

    try:
        return _compiled(template).render(names)
    except TemplateError as error:
        raise _refused(f"the chat template says: {error}") from error
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise _refused(f"the chat template fails on these messages: {error}") from error


@lru_cache(maxsize=32)
def _compiled(template: str) -> Template:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.ext import loopcontrols as loop_controls
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Parses `{% generation %}`, which marks the assistant's text and does not change it."""

        tags = {"generation"}  # noqa: RUF012  Jinja's own way of naming them

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the text goes to a model, not into a page
        extensions=[Generation, loop_controls],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns the messages as new plain dicts, with reasoning under every name
    templates look for."""
    if isinstance(messages, str | Mapping) or not messages:
        raise _refused("it needs a list of at least one message")
    chat = [_plain(message) for message in messages]
    for message in chat:
        if not isinstance(message, dict):
            raise _refused(
                f"a message must be a mapping with 'role' and 'content', not {message!r}"
            )
        given = [message[name] for name in _REASONING if message.get(name) is not None]
        if given:
            message.setdefault("thinking", given[0])
            message["reasoning_content"] = given[0]
    return chat


def _plain(value: Any) -> Any:
    """Returns the value in JSON's own types, so that a template gets no object with methods
    of its own."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {_plain(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names}
    if callable(dump := getattr(value, "model_dump", None)):
        return _plain(dump())
    return f"<{type(value).__name__}>"


def _mark_end(chat: list[dict[str, Any]]) -> None:
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + _END_MARK
        return
    for block in reversed(content if isinstance(content, list) else []):
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            block["text"] += _END_MARK
            return
    raise _refused("the final message has no text to continue")


def _cut_at_mark(text: str) -> str:
    end = text.rfind(_END_MARK.strip())
    if end < 0:
        raise _refused("the chat template drops the end of the final message")
    is_whole = text.startswith(_END_MARK, end)
    return text[:end] if is_whole else text[:end].rstrip()


def _refused(reason: str) -> ValidationError:
    return ValidationError(
        f"The conversation cannot be rendered: {reason}.",
        hint="Pass messages as [{'role': 'user', 'content': '...'}, ...].",
        code="invalid-chat",
    )
