"""Encoding, decoding and rendering, judged by transformers."""

import copy
import pickle
from dataclasses import dataclass
from enum import StrEnum

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from tinkex.errors import ValidationError
from tinkex.tokenizers.tokenizer import load_tokenizer

TEXTS = [
    "",
    "the quick brown fox",
    "  leading and trailing  ",
    "It's , isn't it ? No .",
    "<|im_start|>user\nhello<|im_end|>\n",
    "übergrößenträger 日本語 🙂 \x00\ud7ff",
    "line\r\nbreaks\t\ttabs",
]
TALK = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "What is 2+2?  "},
    {"role": "assistant", "content": '4 <ok> & "fine" ü'},
    {"role": "user", "content": "Thanks"},
]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"ä": 1}}},
    }
]
TEMPLATES = {
    "trimming": (
        "{{ bos_token }}{%- for m in messages %}\n  {%- if loop.first and m.role == 'system' %}"
        "[[{{ m.content | trim }}]]\n  {%- else %}\n<{{ m['role'] }}> {{ m.content|trim }}"
        "{{ eos_token }}\n  {%- endif %}\n{%- endfor %}"
        "{% if add_generation_prompt %}\n<bot> {% endif %}"
    ),
    "tools": (
        "{% if tools %}{% for tool in tools %}\n{{ tool | tojson }}\n{{ tool | tojson(indent=2) }}"
        "{% endfor %}{% endif %}\n{% for m in messages %}{{ m.content | tojson }}|{% endfor %}"
    ),
    "namespace and loop controls": (
        "{% set ns = namespace(found=false, n=0) %}{% for m in messages %}"
        "{% if m.role == 'assistant' %}{% set ns.found = true %}{% break %}{% endif %}"
        "{% set ns.n = ns.n + 1 %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{{ m.content }}{% endfor %}{{ ns.found }}{{ ns.n }}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}\n"
        "{{ m.content }}{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n"
        "{% endfor %}"
    ),
    "macros and variables": (
        "{% macro line(m) %}{{ m.role.upper() }}: {{ m['content'].split(' ')[-1] }}{% endmacro %}"
        "{% for m in messages %}{{ line(m) }}\n{% endfor %}"
        "{{ enable_thinking is defined and not enable_thinking }}{{ missing is none }}"
        "{{ documents is none }}{{ messages[1:] | length }}{{ dict(a=1) | tojson }}"
    ),
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }};{% endfor %}",
    "date": "{{ strftime_now('%Y') | length }}{{ messages[0].content }}",
}


@pytest.fixture
def pair(make_folder):
    """A function that gives our tokenizer and transformers' for the same folder."""

    def make(**options):
        folder = str(make_folder(**options))
        return load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)

    return make


@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_encode_and_decode_agree(pair, add_special_tokens):
    ours, theirs = pair()
    for text in TEXTS:
        ids = ours.encode(text, add_special_tokens=add_special_tokens)
        assert ids == theirs.encode(text, add_special_tokens=add_special_tokens)
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
            ids, skip_special_tokens=True
        )
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
        assert ours(text)["attention_mask"] == theirs(text)["attention_mask"]
    assert ours(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]


@pytest.mark.parametrize(
    "settings",
    [
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"add_eos_token": True},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": True, "bos_token": None},
        {"clean_up_tokenization_spaces": True},
        {"unk_token": "<|new|>", "sep_token": "<|im_end|>"},
        {"model_max_length": 4},
        {
            "added_tokens_decoder": {
                "405": {"content": "<tool>", "special": False, "normalized": False},
                "404": {"content": "<|x|>", "special": True},
            }
        },
    ],
    ids=str,
)
def test_settings_of_the_tokenizer_are_followed(pair, settings):
    ours, theirs = pair(**settings)
    for text in [*TEXTS, "a <tool> <|x|> <|new|> b"]:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
        assert ours.decode(ours.encode(text), True) == theirs.decode(theirs.encode(text), True)
    assert len(ours) == len(theirs)


def test_named_tokens_and_sizes_agree(pair):
    ours, theirs = pair()
    names = ("vocab_size", "eos_token", "eos_token_id", "bos_token", "bos_token_id")
    for name in (*names, "pad_token", "pad_token_id", "special_tokens_map", "chat_template"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs)
    assert ours.convert_tokens_to_ids("the") == theirs.convert_tokens_to_ids("the")
    assert load_tokenizer(ours.name_or_path).eos_token_id == 2


def test_missing_named_tokens_are_none(pair):
    ours, _ = pair(bos_token=None, eos_token=None, pad_token=None)
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (None, None, None)
    assert ours.convert_tokens_to_ids("no such token") is None


def test_template_of_the_post_processor_and_truncation_in_the_file(make_folder, backend, pair):
    changed = Backend.from_str(backend.to_str())
    changed.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    changed.enable_padding(length=50)
    ours, theirs = pair(backend=changed)
    assert ours.encode("the quick") == theirs.encode("the quick")
    changed.enable_truncation(max_length=3)
    assert len(pair(backend=changed)[0].encode("the quick brown fox jumps")) > 3


def test_wordpiece_blanks_are_cleaned_up(pair):
    backend = Backend(
        models.WordPiece({"[UNK]": 0, "it": 1, "'": 2, "s": 3, ".": 4, "##n": 5}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    for is_wanted in (True, False):
        ours, theirs = pair(backend=backend, clean_up_tokenization_spaces=is_wanted)
        ids = ours.encode("it's it . its")
        assert ours.decode(ids) == theirs.decode(ids)


def test_decode_accepts_ids_arrays_and_tensors(pair):
    import numpy as np
    import torch

    ours, _ = pair()
    ids = ours.encode("the quick fox")
    for form in (tuple(ids), np.array(ids), torch.tensor(ids), iter(ids)):
        assert ours.decode(form) == "the quick fox"
    assert ours.decode(ids[0]) == "the"
    assert ours.batch_decode([ids, []]) == ["the quick fox", ""]


@pytest.mark.parametrize("ids", [[-1], [2**40]])
def test_impossible_ids_are_a_users_error(pair, ids):
    with pytest.raises(ValidationError, match="Token ids"):
        pair()[0].decode(ids)


def test_only_texts_can_be_encoded(pair):
    with pytest.raises(ValidationError, match="not bytes"):
        pair()[0].encode(b"bytes")


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_templates_render_as_in_transformers(pair, name, add_generation_prompt):
    ours, theirs = pair(chat_template=TEMPLATES[name])
    talk = [dict(TALK[0], thinking="hm"), *TALK[1:]]
    kwargs = {
        "tools": TOOLS,
        "add_generation_prompt": add_generation_prompt,
        "enable_thinking": False,
    }
    text = ours.apply_chat_template(talk, tokenize=False, **kwargs)
    assert text == theirs.apply_chat_template(talk, tokenize=False, **kwargs)
    ids = ours.apply_chat_template(talk, **kwargs)
    assert ids == theirs.apply_chat_template(talk, return_dict=False, **kwargs)
    assert ours.apply_chat_template(talk, return_dict=True, **kwargs)["input_ids"] == ids


def test_chat_with_generation_prompt(pair):
    ours, _ = pair()
    assert (
        ours.apply_chat_template(
            [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
        )
        == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("template", [None, TEMPLATES["trimming"]], ids=["keeping", "trimming"])
@pytest.mark.parametrize("content", ["The answer is", "The answer is  ", "x"])
def test_continuing_the_final_message(pair, template, content):
    ours, theirs = pair()
    talk = [*TALK, {"role": "assistant", "content": content}]
    kwargs = {"tokenize": False, "continue_final_message": True, "chat_template": template}
    text = ours.apply_chat_template(talk, **kwargs)
    assert text == theirs.apply_chat_template(talk, **kwargs)
    assert text.rstrip().endswith(content.strip())
    assert talk[-1]["content"] == content


def test_continuing_a_message_of_several_parts(pair):
    template = (
        "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %};{% endfor %}"
    )
    ours, theirs = pair(chat_template=template)
    parts = [{"type": "image"}, {"type": "text", "text": "see"}, {"type": "image"}]
    talk = [{"role": "assistant", "content": parts}]
    kwargs = {"tokenize": False, "continue_final_message": True}
    assert ours.apply_chat_template(talk, **kwargs) == theirs.apply_chat_template(talk, **kwargs)
    assert parts[1]["text"] == "see"


def test_messages_may_be_other_objects_than_dicts(pair):
    @dataclass
    class Message:
        role: str
        content: str

    class Role(StrEnum):
        USER = "user"

    class Model:
        def model_dump(self):
            return {"role": "user", "content": "hi"}

    ours, theirs = pair()
    talk = [Message("user", "hi"), {"role": Role.USER, "content": "hi"}, Model()]
    text = ours.apply_chat_template(talk, tokenize=False)
    assert text == theirs.apply_chat_template(talk, tokenize=False)


def test_named_templates_in_settings_and_files(pair):
    stored = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    files = {"chat_template.jinja": "file D", "additional_chat_templates/rag.jinja": "file R"}
    for options in (
        {"chat_template": stored},
        {"files": files},
        {"files": {"chat_template.jinja": "x"}},
    ):
        ours, theirs = pair(**options)
        for kwargs in (
            {},
            {"tools": TOOLS},
            {"chat_template": "tool_use"},
            {"chat_template": "rag"},
        ):
            got = ours.apply_chat_template(TALK, tokenize=False, **kwargs)
            assert got == theirs.apply_chat_template(TALK, tokenize=False, **kwargs)


@pytest.mark.parametrize(
    ("talk", "kwargs", "reason"),
    [
        ([], {}, "at least one message"),
        ("hello", {}, "at least one message"),
        (["hello"], {}, "must be a mapping"),
        (TALK, {"chat_template": "{{ raise_exception('roles must alternate') }}"}, "alternate"),
        (TALK, {"chat_template": "{{ messages[0].content + 1 }}"}, "fails on these messages"),
        (TALK, {"chat_template": "{% for %}"}, "template says"),
        (TALK, {"chat_template": "{{ messages.append(1) }}"}, "template says"),
        (TALK, {"chat_template": "{{ ''.__class__.__mro__[1] }}"}, "template says"),
        (TALK, {"continue_final_message": True, "add_generation_prompt": True}, "exclude"),
        (TALK, {"continue_final_message": True, "chat_template": "x"}, "drops the end"),
        ([{"role": "tool"}], {"continue_final_message": True}, "no text to continue"),
        (TALK, {"return_tensors": "pt"}, "does not support return_tensors"),
    ],
)
def test_refusals_are_validation_errors(pair, talk, kwargs, reason):
    with pytest.raises(ValidationError, match=reason):
        pair()[0].apply_chat_template(talk, **kwargs)


@pytest.mark.parametrize("template", [None, [{"name": "rag", "template": "R"}]])
def test_without_a_template_the_error_says_what_to_do(pair, template):
    with pytest.raises(ValidationError, match="no chat template") as caught:
        pair(chat_template=template)[0].apply_chat_template(TALK)
    assert "chat_template=" in caught.value.hint


def test_options_that_change_nothing_are_accepted(pair):
    ours, _ = pair()
    plain = ours.apply_chat_template(TALK)
    assert ours.apply_chat_template(TALK, padding=False, return_tensors=None) == plain


def test_survives_pickle_and_copy(pair):
    ours, _ = pair()
    for other in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert other.encode("the quick") == ours.encode("the quick")
        assert other.apply_chat_template(TALK) == ours.apply_chat_template(TALK)
    assert "vocab_size" in repr(ours)


def test_special_flag_of_added_tokens_reaches_decoding(pair, backend):
    changed = Backend.from_str(backend.to_str())
    changed.add_tokens([AddedToken("<think>", special=False)])
    ours, theirs = pair(backend=changed)
    ids = ours.encode("<think>the<|im_end|>")
    assert ours.decode(ids, skip_special_tokens=True) == "<think>the"
    assert theirs.decode(ids, skip_special_tokens=True) == "<think>the"
