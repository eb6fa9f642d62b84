"""`tinkex chat`, without a terminal: the conversation itself, and what a slash does."""

import json

import pytest

from tinkex.cli import chat as chat_module
from tinkex.cli.chat import Chat, talk
from tinkex.client.futures import Future
from tinkex.client.sample_stream import DeltaQueue, SampleStream, whole_deltas
from tinkex.errors import RateLimitError
from tinkex.tokenizers.tokenizer import load_tokenizer
from tinkex.types import SampledSequence, SampleResponse, SamplingParams


class Sampler:
    """Says "yes" to everything, and remembers what it was asked."""

    def __init__(self):
        self.prompts = []
        self.stop_reason = "stop"
        self.error = None

    def sample(self, prompt, num_samples, params, *, stream):
        assert stream
        if self.error is not None:
            raise self.error
        self.prompts.append(prompt.to_ints())
        raw = b"".join(token.to_bytes(4, "little") for token in [*b"yes", 258])
        sequence = SampledSequence(stop_reason=self.stop_reason, tokens_raw=raw)
        response, queue = SampleResponse(sequences=[sequence]), DeltaQueue()
        for delta in whole_deltas(response):
            queue.put(delta)
        return SampleStream(Future.resolved(response), queue)


@pytest.fixture
def sampler():
    return Sampler()


@pytest.fixture
def chat(sampler, model):
    return Chat(sampler, load_tokenizer(model), SamplingParams(max_tokens=3), "Be brief.")


@pytest.fixture
def speak(monkeypatch, chat):
    """Types lines into the conversation, then Ctrl-D."""

    def say(*lines):
        left = list(lines)

        def read(prompt):
            if not left:
                raise EOFError
            line = left.pop(0)
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        talk(chat)

    return say


def test_answers_grow_the_conversation(speak, chat, sampler, capsys):
    speak("Hello", "Really?")
    assert capsys.readouterr().out == "yes\nyes\n\n"
    assert [(each["role"], each["content"]) for each in chat.messages] == [
        ("system", "Be brief."),
        ("user", "Hello"),
        ("assistant", "yes"),
        ("user", "Really?"),
        ("assistant", "yes"),
    ]
    text = bytes(token for token in sampler.prompts[1] if token < 256).decode()
    assert text == "system\nBe brief.\nuser\nHello\nassistant\nyes\nuser\nReally?\nassistant\n"


def test_reset_and_system(speak, chat, capsys):
    speak("Hello", "/reset")
    assert [each["role"] for each in chat.messages] == ["system"]
    speak("/system Rhyme.")
    assert chat.messages == [{"role": "system", "content": "Rhyme."}]
    speak("/system")
    assert chat.messages == []
    assert "Started a new conversation" in capsys.readouterr().err


def test_saved_conversation_is_training_data(speak, tmp_path, chat, capsys):
    from tinkex.cli.sft_data import read_records

    speak("Hello", f"/save {tmp_path / 'talk.jsonl'}")
    (record,) = read_records(tmp_path / "talk.jsonl")
    assert record.messages == json.loads(json.dumps(chat.messages))
    speak(f"/save {tmp_path}")
    assert "Not saved" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["/help", "/save", "/nonsense"])
def test_anything_else_with_a_slash_is_help(speak, line, capsys):
    speak(line)
    assert "/reset" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["/quit", "/exit"])
def test_quit_leaves(speak, sampler, line):
    speak(line, "Hello")
    assert sampler.prompts == []


def test_empty_lines_and_ctrl_c_while_typing_ask_again(speak, sampler, capsys):
    speak("", "   ", KeyboardInterrupt(), "Hello")
    assert len(sampler.prompts) == 1
    assert "/quit leaves" in capsys.readouterr().err


def test_ctrl_c_breaks_off_the_answer_only(speak, chat, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(chat_module, "_wait", interrupt)
    speak("Hello")
    assert "(broken off)" in capsys.readouterr().err
    assert len(chat.messages) == 1


def test_error_of_the_server_is_printed_and_the_chat_goes_on(speak, chat, sampler, capsys):
    sampler.error = RateLimitError("Too much.", status=429)
    speak("Hello")
    assert "Error: Too much.\n  Wait a little" in capsys.readouterr().err
    assert len(chat.messages) == 1


def test_cut_answer_is_said_to_be_cut(speak, sampler, capsys):
    sampler.stop_reason = "length"
    speak("Hello")
    assert "cut at --max-tokens" in capsys.readouterr().err


def test_model_without_a_template_simply_goes_on(speak, chat, sampler):
    chat._tokenizer.chat_template = None
    chat._system = None
    chat.reset()
    speak("ab", "c")
    assert [bytes(prompt).decode() for prompt in sampler.prompts] == ["ab", "abyesc"]


def test_chat_needs_a_terminal(cli, server):
    ran = cli("chat", "--base-model", "m")
    assert ran.code == 2
    assert "tinkex run --chat" in ran.err
    assert server.requests == []


def test_chat_needs_a_model(cli):
    assert "Which model?" in cli("chat").err
