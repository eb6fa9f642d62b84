"""Calls of tools, whole round trip: shown by the template, written by the model, read, answered."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.server.openai.conftest import ADD, ASK_CALL, ASK_JSON, JSON, MODEL, Trained
from tinkex.tokenizers.tokenizer import Tokenizer


def ask(client: openai.OpenAI, trained: Trained, **changes: Any) -> Any:
    asked: dict[str, Any] = {
        "model": trained.path,
        "messages": ASK_CALL,
        "tools": [ADD],
        "temperature": 0,
        "max_tokens": 120,
        **changes,
    }
    return client.chat.completions.create(**asked)


def test_a_call_is_read_and_its_result_rendered(
    client: openai.OpenAI, trained: Trained, tokenizer: Tokenizer
) -> None:
    choice = ask(client, trained, tool_choice="auto").choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    call = choice.message.tool_calls[0]
    assert call.function.name == "add"
    assert json.loads(call.function.arguments) == {"a": 1, "b": 2}
    history = [
        *ASK_CALL,
        choice.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "3"},
    ]
    after = ask(client, trained, messages=history)
    called = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    rendered = tokenizer.apply_chat_template(
        [
            *ASK_CALL,
            {"role": "assistant", "content": "", "tool_calls": [called]},
            {"role": "tool", "content": "3"},
        ],
        [ADD],
        add_generation_prompt=True,
    )
    assert after.usage.prompt_tokens == len(rendered)


def test_without_tools_a_call_is_text(client: openai.OpenAI, trained: Trained) -> None:
    shown = ask(client, trained)
    hidden = ask(client, trained, tool_choice="none")
    assert hidden.usage.prompt_tokens < shown.usage.prompt_tokens, "the tools are not rendered"
    assert hidden.choices[0].message.tool_calls is None


def test_text_stays_text_where_tools_are_offered(client: openai.OpenAI, trained: Trained) -> None:
    answer = ask(client, trained, messages=ASK_JSON, tool_choice="none").choices[0]
    assert answer.message.content == JSON
    untrained = ask(client, trained, model=MODEL, max_tokens=5).choices[0]
    assert untrained.message.tool_calls is None
    assert untrained.finish_reason in {"stop", "length"}


NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tool_choice": "auto", "tools": openai.omit}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            "tools[0].function.strict",
        ),
    ],
)
def test_what_cannot_be_promised_is_refused(
    client: openai.OpenAI, trained: Trained, changes: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, trained, **changes)
    assert refused.value.param == param
