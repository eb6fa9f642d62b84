"""Messages and tools in the form that chat templates take; content they cannot show is refused."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, Final

from tinkex.server.openai.errors import BadParameter
from tinkex.server.openai.requests import CalledTool, ChatCompletionRequest, ChatMessage
from tinkex.tokenizers.tokenizer import Tokenizer

__all__ = ["offered_tools", "template_messages", "template_variables"]

_ROLES: Final = {
    "system": "system",
    "developer": "system",  # templates know the older name only
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


_TAKEN: Final = frozenset(inspect.signature(Tokenizer.apply_chat_template).parameters) | {"kwargs"}
"""Names that the template renderer uses itself."""


def template_messages(request: ChatCompletionRequest) -> list[dict[str, Any]]:
    """The conversation for the model's template.

    Raises:
        BadParameter: a message has a role, a part or a call that cannot be rendered.
    """
    if not request.messages:
        raise BadParameter("messages is empty; it needs at least one message.", param="messages")
    return [_message(f"messages[{i}]", each) for i, each in enumerate(request.messages)]


def offered_tools(request: ChatCompletionRequest) -> list[dict[str, Any]] | None:
    """The tools that the model may call; None if there are none.

    Raises:
        BadParameter: a tool is not a function, or `tool_choice` forces a call.
    """
    tools, choice = request.tools, request.tool_choice
    for place, tool in enumerate(tools or ()):
        _check_tool(f"tools[{place}]", tool)
    if choice not in (None, "none", "auto"):
        raise BadParameter(
            f"tool_choice={json.dumps(choice)[:200]} is not supported: this server cannot force "
            "a model to call a tool.",
            param="tool_choice",
            hint='Use "auto" or "none".',
        )
    if choice == "auto" and not tools:
        raise BadParameter('tool_choice="auto" needs tools.', param="tool_choice")
    if tools and request.parallel_tool_calls is False and choice != "none":
        raise BadParameter(
            "parallel_tool_calls=false is not supported: the model decides how many calls it "
            "writes.",
            param="parallel_tool_calls",
            hint="Leave it out.",
        )
    return tools if tools and choice != "none" else None


def template_variables(request: ChatCompletionRequest) -> dict[str, Any]:
    """The variables of the template that the request sets.

    Raises:
        BadParameter: one of them is reserved. A template in a request, above all, would be the
            caller's program run on the server.
    """
    variables = request.chat_template_kwargs or {}
    if taken := sorted(_TAKEN & variables.keys()):
        raise BadParameter(
            f"chat_template_kwargs has {taken[0]!r}, which requests may not set.",
            param="chat_template_kwargs",
        )
    return variables


def _message(where: str, message: ChatMessage) -> dict[str, Any]:
    role = _ROLES.get(message.role)
    if role is None:
        known = ", ".join(_ROLES)
        raise BadParameter(
            f"{where}.role={message.role[:100]!r} is not one of {known}.", param=f"{where}.role"
        )
    for name in ("function_call", "audio"):
        if getattr(message, name) is not None:
            raise BadParameter(f"{where}.{name} is not supported.", param=f"{where}.{name}")
    text = _text(where, message)
    if text is None and not (role == "assistant" and message.tool_calls):
        raise BadParameter(f"{where} has no content.", param=f"{where}.content")
    # Many templates test whether the field exists, so an empty list must be left out.
    rendered: dict[str, Any] = {"role": role, "content": text or ""}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            rendered[name] = value
    if message.tool_calls:
        rendered["tool_calls"] = [_earlier_call(each) for each in message.tool_calls]
    return rendered


def _text(where: str, message: ChatMessage) -> str | None:
    """The text of a message, its parts joined."""
    content = message.content
    if content is None:
        return message.refusal
    if isinstance(content, str):
        return content
    return "".join(_part(f"{where}.content[{i}]", part) for i, part in enumerate(content))


def _part(where: str, part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    text = part.get("text" if kind == "text" else "refusal")
    if kind not in ("text", "refusal") or not isinstance(text, str):
        raise BadParameter(
            f"{where} is of type {str(kind)[:100]!r}. The models of this server read text only.",
            param=f"{where}.type",
        )
    return text


def _earlier_call(call: CalledTool) -> dict[str, Any]:
    """A tool call of an earlier message. Templates encode arguments as JSON themselves, so they get
    the decoded object if the text is one."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = call.function.arguments
    shown = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    return shown if call.id is None else {"id": call.id, **shown}


def _check_tool(where: str, tool: Mapping[str, Any]) -> None:
    if tool.get("type") != "function":
        raise BadParameter(
            f"{where}.type={str(tool.get('type'))[:100]!r} must be 'function'.",
            param=f"{where}.type",
        )
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadParameter(f"{where}.function has no name.", param=f"{where}.function")
    if function.get("strict"):
        raise BadParameter(
            "strict=true is not supported: answers are not guided by a schema.",
            param=f"{where}.function.strict",
            hint="Leave it out, and check the arguments of a call.",
        )
