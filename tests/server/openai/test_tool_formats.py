"""Calls as each family of models writes them."""

from __future__ import annotations

import json

import pytest

from tinkex.server.openai.tool_formats import (
    HermesFormat,
    LlamaFormat,
    MistralFormat,
    PhiFormat,
    ToolFormat,
    tool_format_of,
)

ONE = ("add", {"a": 1})
TWO = ("say", {"text": "<b>ü</b>"})

WRITTEN: list[tuple[ToolFormat, str, str, list[tuple[str, object]]]] = [
    (
        HermesFormat(),
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
        "",
        [ONE],
    ),
    (
        HermesFormat(),
        'I will.\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n<tool_call>'
        '{"name": "say", "arguments": "{\\"text\\": \\"<b>ü</b>\\"}"}',
        "I will.",
        [ONE, TWO],
    ),
    (HermesFormat(), '<tool_call>{"name": "now"}</tool_call>', "", [("now", {})]),
    (PhiFormat(), '<|tool_call|>[{"name":"add","arguments":{"a":1}}]<|/tool_call|>', "", [ONE]),
    (MistralFormat(), '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', "", [ONE]),
    (MistralFormat(), 'Yes[TOOL_CALLS]add[ARGS]{"a": 1}', "Yes", [ONE]),
    (
        MistralFormat(),
        '[TOOL_CALLS]add[CALL_ID]abc123xyz[ARGS]{"a": 1}[TOOL_CALLS]say{"text": "<b>ü</b>"}',
        "",
        [ONE, TWO],
    ),
    (LlamaFormat(), '{"name": "add", "parameters": {"a": 1}}', "", [ONE]),
    (LlamaFormat(), '<|python_tag|>{"name": "add", "parameters": {"a": 1}}', "", [ONE]),
    (
        LlamaFormat(),
        '\n\n{"name": "add", "parameters": {"a": 1}}; {"name": "say", "parameters": '
        '{"text": "<b>ü</b>"}}',
        "",
        [ONE, TWO],
    ),
]


@pytest.mark.parametrize(("format_", "text", "content", "calls"), WRITTEN)
def test_calls_are_read(
    format_: ToolFormat, text: str, content: str, calls: list[tuple[str, object]]
) -> None:
    parsed = format_.parse(text)
    assert parsed.content == content
    assert [(call.name, json.loads(call.arguments)) for call in parsed.calls] == calls


@pytest.mark.parametrize(("format_", "text", "content", "calls"), WRITTEN)
def test_nothing_of_a_call_is_given_out_as_text_before_it_is_whole(
    format_: ToolFormat, text: str, content: str, calls: list[tuple[str, object]]
) -> None:
    start = format_.starts_at(text)
    assert text[:start].strip() == content
    assert all(format_.starts_at(text[:size]) <= start for size in range(len(text)))


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        (HermesFormat(), "just text"),
        (HermesFormat(), "<tool_call>not json</tool_call>"),
        (HermesFormat(), '<tool_call>{"name": "add", "arguments": {"a": '),
        (HermesFormat(), '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
        (HermesFormat(), '<tool_call>{"name": 1}</tool_call>'),
        (HermesFormat(), '<tool_call>{"name": "add"} and more'),
        (HermesFormat(), "<tool_call>" + "[" * 100_000),
        (HermesFormat(), "a < b"),
        (PhiFormat(), "<|tool_call|>"),
        (MistralFormat(), "[TOOL_CALLS]"),
        (MistralFormat(), "[TOOL_CALLS]add[ARGS]"),
        (LlamaFormat(), '{"a": 1}'),
        (LlamaFormat(), '{"name": "add", "arguments": {}}'),
        (LlamaFormat(), '{"name": "add", "parameters": {}} is what I would call'),
        (LlamaFormat(), ""),
        (LlamaFormat(), "x" + '{"name": "add", "parameters": {}}'),
    ],
)
def test_what_is_no_call_stays_text(format_: ToolFormat, text: str) -> None:
    assert format_.parse(text) == (text, ())


def test_text_is_held_back_no_longer_than_it_must_be() -> None:
    hermes, llama = HermesFormat(), LlamaFormat()
    assert [hermes.starts_at(text) for text in ("", "a", "a<", "a<to", "a<tp", "<")] == (
        [0, 1, 1, 1, 4, 0]
    )
    assert [llama.starts_at(text) for text in ("", " ", "a", " {", "<|py", "<b", "<|python_tag|>x")]
    assert llama.starts_at("abc") == 3
    assert llama.starts_at(" {") == 1
    assert llama.starts_at("<|py") == 0
    assert llama.starts_at("<b") == 2


def test_formats_are_detected_in_the_template() -> None:
    def kind(template: str) -> type | None:
        found = tool_format_of(template)
        return None if found is None else type(found)

    assert kind("{{ tools }} <tool_call>") is HermesFormat
    assert kind("{{ tools }} <tool_call><function=x>") is None
    assert kind("{{ tools }} [TOOL_CALLS]") is MistralFormat
    assert kind("{{ tools }} <|tool_call|>") is PhiFormat
    assert kind("""{{ tools }} '"parameters": ' ipython""") is LlamaFormat
    assert kind("{{ tools }} in some other way") is None
    assert kind("{{ messages }}") is None


def test_ids_of_calls_fit_their_templates() -> None:
    assert len({HermesFormat().new_id() for _ in range(50)}) == 50
    assert all(
        len(each) == 9 and each.isalnum() for each in (MistralFormat().new_id() for _ in range(50))
    )
