"""Examples made from conversations and rollouts, and the reprs of what is sampled."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from tinkex import (
    Datum,
    DmelChunk,
    ForwardBackwardOutput,
    ImageChunk,
    ModelInput,
    SampledSequence,
    SampleResponse,
    ValidationError,
)
from tinkex.types.sampling import TopkLogprobs


class Letters:
    """A tokenizer of single characters, with a template that marks turns by < and >."""

    def __init__(self, drops_reasoning: bool = False) -> None:
        self.drops_reasoning = drops_reasoning

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens, "the template writes what there is"
        return [ord(letter) for letter in text]

    def apply_chat_template(self, conversation: Any, tools: Any = None, **options: Any) -> str:
        assert options.pop("tokenize") is False
        text = "".join(f"{tool}!" for tool in tools or ())
        for place, message in enumerate(conversation):
            is_answer = message["role"] == "assistant" and place == len(conversation) - 1
            thought = "hm " if self.drops_reasoning and is_answer else ""
            text += f"{message['role'][0]}<{thought}{message['content']}>\n"
        return text + ("a<" if options.get("add_generation_prompt") else "")


CHAT = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "four"},
]


def learned(datum: Datum) -> str:
    """The text of the targets that count."""
    weights = datum.loss_fn_inputs["weights"].tolist()
    targets = datum.loss_fn_inputs["target_tokens"].tolist()
    assert set(weights) <= {0.0, 1.0}
    return "".join(chr(token) for token, weight in zip(targets, weights, strict=True) if weight)


def whole(datum: Datum) -> str:
    tokens = datum.model_input.to_ints()
    targets = datum.loss_fn_inputs["target_tokens"].tolist()
    assert tokens[1:] == targets[:-1], "position i predicts target i"
    return "".join(map(chr, [*tokens, targets[-1]]))


def test_answers_are_learned_with_their_end_and_nothing_else() -> None:
    datum = Datum.from_conversation(CHAT, Letters())
    assert whole(datum) == "u<one>\na<two>\nu<three>\na<four>"
    assert learned(datum) == "two>four>"


def test_the_last_answer_alone() -> None:
    assert learned(Datum.from_conversation(CHAT, Letters(), answers="last")) == "four>"


def test_a_message_of_weight_0_is_not_learned() -> None:
    chat = [CHAT[0], {**CHAT[1], "weight": 0}, *CHAT[2:]]
    assert learned(Datum.from_conversation(chat, Letters())) == "four>"


def test_tools_are_given_to_the_template() -> None:
    datum = Datum.from_conversation(CHAT[:2], Letters(), tools=["dig"])
    assert whole(datum).startswith("dig!u<one>")


def test_answers_that_are_rendered_anew_later_need_examples_of_their_own() -> None:
    tokenizer = Letters(drops_reasoning=True)
    with pytest.raises(ValidationError, match="answers='last'"):
        Datum.from_conversation(CHAT, tokenizer)
    assert learned(Datum.from_conversation(CHAT, tokenizer, answers="last")) == "hm four>"
    assert learned(Datum.from_conversation(CHAT[:2], tokenizer)) == "hm two>"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "no assistant's message"),
        (CHAT[:1], "no assistant's message"),
        (["hello"], "Message 0"),
        ([{"content": "hello"}], "Message 0"),
    ],
)
def test_conversations_without_an_answer_are_refused(messages: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Datum.from_conversation(messages, Letters())


def answer(tokens: list[int], logprobs: list[float] | None) -> SampledSequence:
    return SampledSequence(
        stop_reason="stop",
        tokens_raw=array("i", tokens).tobytes(),
        logprobs_raw=None if logprobs is None else array("f", logprobs).tobytes(),
    )


ANSWER = answer([7, 8, 9], [-1.0, -2.0, -3.0])


@pytest.mark.parametrize("prompt", [[1, 2], ModelInput.from_ints([1, 2])])
def test_a_rollout_is_shifted_and_padded(prompt: Any) -> None:
    datum = Datum.from_rollout(prompt, ANSWER, advantage=0.5)
    assert datum.model_input == ModelInput.from_ints([1, 2, 7, 8])
    inputs = {name: tensor.tolist() for name, tensor in datum.loss_fn_inputs.items()}
    assert inputs == {
        "target_tokens": [2, 7, 8, 9],
        "logprobs": [0.0, -1.0, -2.0, -3.0],
        "advantages": [0.0, 0.5, 0.5, 0.5],
    }


def test_a_rollout_for_gspo_has_a_mask_of_the_sampled_tokens() -> None:
    datum = Datum.from_rollout([1, 2], ANSWER, 0.5, loss_fn="gspo")
    assert datum.loss_fn_inputs["sequence_ratio_mask"].tolist() == [0.0, 1.0, 1.0, 1.0]
    other = Datum.from_rollout([1, 2], ANSWER, 0.5, loss_fn="ppo")
    assert "sequence_ratio_mask" not in other.loss_fn_inputs


def test_an_advantage_for_each_token() -> None:
    datum = Datum.from_rollout([1], ANSWER, advantage=[1.0, -1.0, 2.0])
    assert datum.loss_fn_inputs["advantages"].tolist() == [1.0, -1.0, 2.0]


def test_a_prompt_with_an_image_keeps_it() -> None:
    image = ImageChunk(data=b"x", format="png", expected_tokens=3)
    prompt = ModelInput(chunks=[image]).append_int(5)
    datum = Datum.from_rollout(prompt, ANSWER, advantage=1.0)
    assert datum.model_input.chunks[0] == image
    assert datum.model_input.length == 6
    assert datum.loss_fn_inputs["target_tokens"].tolist() == [0, 0, 0, 7, 8, 9]
    assert datum.loss_fn_inputs["advantages"].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    short = Datum.from_rollout(prompt, answer([7], [-1.0]), advantage=1.0)
    assert short.model_input == prompt


@pytest.mark.parametrize(
    ("prompt", "sequence", "advantage", "said"),
    [
        ([], ANSWER, 1.0, "0 positions"),
        ([1], answer([], []), 1.0, "0 tokens"),
        ([1], answer([7], None), 1.0, "no logprobs"),
        ([1], ANSWER, [1.0], "1 advantages for 3"),
    ],
)
def test_rollouts_that_do_not_fit_are_refused(
    prompt: Any, sequence: SampledSequence, advantage: Any, said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        Datum.from_rollout(prompt, sequence, advantage)


def test_a_sampled_sequence_shows_counts_and_not_bytes() -> None:
    text = repr(ANSWER)
    assert text == "<SampledSequence 3 tokens [7, 8, 9], stop>"
    long = answer(list(range(100)), None)
    assert repr(long) == "<SampledSequence 100 tokens [0, 1, 2, 3, 4, 5, 6, 7, ...], stop>"


def test_reprs_show_sizes_and_not_contents() -> None:
    scores = TopkLogprobs(token_ids=bytes(24), logprobs=bytes(24), k=2, length=3)
    response = SampleResponse(sequences=[ANSWER], prompt_logprobs_raw=bytes(8))
    output = ForwardBackwardOutput(
        loss_fn_output_type="logprobs", loss_fn_outputs=[{}, {}], metrics={"loss:sum": 2.5}
    )
    assert repr(scores) == "<TopkLogprobs 2 at each of 3 positions>"
    assert repr(response) == f"<SampleResponse [{ANSWER!r}], 2 prompt logprobs>"
    assert repr(output) == "<ForwardBackwardOutput 2 examples, metrics {'loss:sum': 2.5}>"
    assert repr(ImageChunk(data=b"abc", format="png")) == "<ImageChunk png, 3 bytes>"
    assert repr(DmelChunk(dmel=b"abcd")) == "<DmelChunk 4 bytes>"
