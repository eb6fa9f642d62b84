"""Conversations and pairs as training examples: what is learned, and what is refused."""

import json
from dataclasses import dataclass, field

import pytest

from tinkex.cli.sft_data import Example, encode, read_records, sha256_of
from tinkex.errors import ValidationError
from tinkex.tokenizers.tokenizer import load_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Drops the reasoning of every answer but the last, as templates of reasoning models do.
REASONING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>{{ m.thought }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Opens a reasoning block when it asks, which an answer without one does not have.
OPENING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)


@dataclass
class Letters:
    """A tokenizer of single characters, with a template."""

    chat_template: str | None = CHATML
    eos_token_id: int | None = 0
    encoded: list[str] = field(default_factory=list)

    def encode(self, text, add_special_tokens=True):
        self.encoded.append(text)
        return [ord(mark) for mark in text]

    def apply_chat_template(self, messages, tools=None, *, tokenize, **options):
        from tinkex.tokenizers.chat_template import render_chat

        assert not tokenize
        return render_chat(self.chat_template, messages, tools=tools, **options)


def write(tmp_path, *lines):
    path = tmp_path / "data.jsonl"
    path.write_text(
        "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines)
    )
    return path


def examples(tmp_path, *lines, tokenizer=None, is_plain=False, max_length=None):
    records = read_records(write(tmp_path, *lines))
    made = encode(records, tokenizer or Letters(), is_plain=is_plain, max_length=max_length)
    return made


def marked(example: Example) -> str:
    """The example as text, what is learned between » and «."""
    text, was_learned = "", False
    for token, is_learned in zip(example.tokens, example.is_learned, strict=True):
        text += (
            "»" if is_learned and not was_learned else "«" if was_learned and not is_learned else ""
        )
        text += chr(token) if token else "␄"
        was_learned = is_learned
    return text + ("«" if was_learned else "")


def chat(*contents, **extra):
    roles = ("user", "assistant")
    return {
        "messages": [
            {"role": roles[place % 2], "content": content, **extra}
            for place, content in enumerate(contents)
        ]
    }


def test_only_the_answer_and_its_end_marker_are_learned(tmp_path):
    (example,) = examples(tmp_path, chat("Hi", "Hello")).examples
    assert marked(example) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n»Hello<|im_end|>«"
    )


def test_every_answer_of_a_conversation_is_learned(tmp_path):
    (example,) = examples(tmp_path, chat("a", "b", "c", "d")).examples
    assert marked(example) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n»b<|im_end|>«\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n»d<|im_end|>«"
    )


def test_text_parts_are_joined(tmp_path):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    lines = chat([{"type": "text", "text": "Hi"}], parts), chat("Hi", "Hello")
    joined, whole = examples(tmp_path, *lines).examples
    assert joined == whole
    pair = {"prompt": lines[0]["messages"][:1], "completion": lines[0]["messages"][1:]}
    assert examples(tmp_path, pair).examples == [whole]


def test_null_beside_tool_calls_is_no_words(tmp_path):
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    line = chat("a", None, "c", "d")
    line["messages"][1]["tool_calls"] = [call]
    (example,) = examples(tmp_path, line).examples
    assert "assistant\n»<|im_end|>«" in marked(example)


def test_words_after_the_last_answer_are_left_out(tmp_path):
    (example,) = examples(tmp_path, chat("a", "b", "c")).examples
    assert marked(example).endswith("»b<|im_end|>«")


def test_answers_of_weight_0_are_not_learned(tmp_path):
    line = chat("a", "b", "c", "d")
    line["messages"][1]["weight"] = 0
    line["messages"][3]["weight"] = 1
    (example,) = examples(tmp_path, line).examples
    assert "assistant\nb<|im_end|>\n" in marked(example)
    assert marked(example).endswith("»d<|im_end|>«")


def test_template_that_rewrites_earlier_turns_gives_an_example_for_each_answer(tmp_path):
    line = chat("a", "b", "c", "d", thought="hm")
    made = examples(tmp_path, line, tokenizer=Letters(REASONING)).examples
    assert [marked(each).partition("»")[2] for each in made] == [
        "<think>hm</think>b<|im_end|>«",
        "<think>hm</think>d<|im_end|>«",
    ]
    assert "assistant\nb<|im_end|>" in marked(made[1])


def test_template_whose_prompt_differs_from_its_record(tmp_path):
    (example,) = examples(tmp_path, chat("a", "b"), tokenizer=Letters(OPENING)).examples
    assert marked(example) == "<user>a</s><assistant>»b</s>«"


def test_answer_without_a_question_is_learned_whole(tmp_path):
    line = {"messages": [{"role": "assistant", "content": "b"}]}
    (example,) = examples(tmp_path, line).examples
    assert marked(example) == "»<|im_start|>assistant\nb<|im_end|>«"


def test_prompt_and_answer_are_encoded_apart_as_when_sampling(tmp_path):
    letters = Letters()
    examples(tmp_path, chat("a", "b"), tokenizer=letters)
    assert letters.encoded == [
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n",
        "b<|im_end|>",
    ]


def test_pairs_go_through_the_chat_template(tmp_path):
    (example,) = examples(tmp_path, {"prompt": "a", "completion": "b"}).examples
    assert marked(example) == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n»b<|im_end|>«"


@pytest.mark.parametrize(("template", "is_plain"), [(CHATML, True), (None, False), (None, True)])
def test_plain_pairs_end_with_the_end_token(tmp_path, template, is_plain):
    line = {"prompt": "a", "completion": "b"}
    (example,) = examples(tmp_path, line, tokenizer=Letters(template), is_plain=is_plain).examples
    assert marked(example) == "a»b␄«"
    without = examples(tmp_path, line, tokenizer=Letters(None, None)).examples[0]
    assert marked(without) == "a»b«"


def test_pairs_of_messages_learn_the_completion_alone(tmp_path):
    line = {
        "prompt": chat("a", "b", "c")["messages"],
        "completion": [{"role": "assistant", "content": "d"}],
    }
    (example,) = examples(tmp_path, line).examples
    assert marked(example).count("»") == 1
    assert marked(example).endswith("»d<|im_end|>«")


def test_long_examples_are_cut_and_empty_ones_left_out(tmp_path):
    long, short = chat("a" * 200, "b"), chat("a", "bbbbbbbbbbbb")
    made = examples(tmp_path, long, short, max_length=58)
    assert (len(made.examples), made.num_cut, made.num_skipped) == (1, 2, 1)
    assert len(made.examples[0].tokens) == 58
    assert made.num_tokens == 58


def test_nothing_to_learn_at_all_is_an_error(tmp_path):
    with pytest.raises(ValidationError, match="No example has anything to learn") as caught:
        examples(tmp_path, chat("a" * 200, "b"), max_length=20)
    assert "--max-length" in caught.value.hint


def test_conversation_cannot_be_plain(tmp_path):
    with pytest.raises(ValidationError, match="Line 1 is a conversation"):
        examples(tmp_path, chat("a", "b"), is_plain=True)


def test_error_of_the_template_names_the_line(tmp_path):
    template = "{{ raise_exception('no system messages, please') }}"
    with pytest.raises(ValidationError, match=r"Line 2: .*no system messages") as caught:
        examples(tmp_path, "", chat("a", "b"), tokenizer=Letters(template))
    assert caught.value.code == "invalid-chat"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "this is not JSON"),
        ("[1]", "not a JSON object"),
        ({}, "but nothing"),
        ({"text": "a"}, "but 'text'"),
        ({"messages": []}, "not a list with something in it"),
        ({"messages": "a"}, "not a list"),
        ({"messages": [{"content": "a"}]}, "message 1 has no role"),
        ({"messages": ["a"]}, "message 1 has no role"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "the role 'robot'"),
        ({"messages": [{"role": "user"}]}, "message 1 has no content"),
        (chat("a", 5), "'content' of message 2 is neither"),
        (chat("a", {"text": "b"}), "'content' of message 2 is neither"),
        (chat("a", None), "'content' of message 2 is null"),
        (chat("a", None, tool_calls=None), "'content' of message 2 is null"),
        (chat(["a"], "b"), "'content' of message 1 has a part that is no object"),
        (chat([{"type": "image_url"}], "b"), "message 1 has a part that is 'image_url'"),
        (chat([{"type": "text", "text": 1}], "b"), "message 1 has a part whose 'text'"),
        (chat("a", "\ud800x"), r"half a character, '\ud800'"),
        ({**chat("a", "b"), "tools": [{"\udfff": 1}]}, "half a character"),
        ("[" * 100_000, "nested too deeply"),
        (chat("a"), "no assistant's message"),
        (chat("a", "b", weight=0), "no assistant's message"),
        ({"prompt": "a"}, "but 'prompt'"),
        ({"prompt": "a", "completion": 1}, "neither both texts nor both messages"),
        ({**chat("a", "b"), "tools": "x"}, "'tools' is not a list"),
        ('{"a": "\ud800"}'.encode("utf-8", "surrogatepass").decode("latin-1"), "but 'a'"),
    ],
)
def test_bad_lines_are_named_with_what_is_wrong(tmp_path, line, problem):
    path = write(tmp_path, chat("a", "b"), "", line)
    with pytest.raises(ValidationError) as caught:
        read_records(path)
    assert "data.jsonl, line 3: " in caught.value.message
    assert problem in caught.value.message
    assert '{"messages"' in caught.value.hint


def test_whole_surrogate_pairs_are_a_character(tmp_path):
    (record,) = read_records(write(tmp_path, r'{"prompt": "\ud83d\ude00", "completion": "b"}'))
    assert record.texts == ("😀", "b")


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "\xff", "completion": "b"}\n')
    with pytest.raises(ValidationError, match="line 1: this is not JSON"):
        read_records(path)


def test_empty_file_is_refused(tmp_path):
    with pytest.raises(ValidationError, match="holds no examples"):
        read_records(write(tmp_path, "", "  "))


def test_datum_is_shifted_by_one():
    datum = Example([1, 2, 3], [False, False, True]).to_datum()
    assert datum.model_input.to_ints() == [1, 2]
    assert datum.loss_fn_inputs["target_tokens"].tolist() == [2, 3]
    assert datum.loss_fn_inputs["weights"].tolist() == [0.0, 1.0]


def test_first_token_is_never_learned():
    assert Example([1, 2], [True, True]).num_learned == 1


def test_real_tokenizer_marks_the_same_text(tmp_path, model):
    tokenizer = load_tokenizer(model)
    (example,) = examples(tmp_path, chat("Hi", "Hellö"), tokenizer=tokenizer).examples
    learned = [
        t for t, is_learned in zip(example.tokens, example.is_learned, strict=True) if is_learned
    ]
    assert tokenizer.decode(learned) == "Hellö<|im_end|>"
    whole = tokenizer.apply_chat_template(chat("Hi", "Hellö")["messages"])
    assert [*example.tokens, ord("\n")] == whole


def test_hash_is_of_the_content(tmp_path):
    path = write(tmp_path, {})
    before = sha256_of(path)
    write(tmp_path, {"a": 1})
    assert sha256_of(path) != before
