"""Datum: one training example, an input and the tensors its loss is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._conversation import ChatTokenizer, Message, encode_answers, learned_places
from tinkex.types._model import Holds, RecordModel
from tinkex.types._rollout import rollout_example
from tinkex.types.model_input import ModelInput
from tinkex.types.sampling import SampledSequence
from tinkex.types.tensor import TensorData, TensorDtype

LIST_DTYPES: dict[str, TensorDtype] = {
    "target_tokens": "int64",
    "weights": "float32",
    "advantages": "float32",
    "logprobs": "float32",
    "clip_low_threshold": "float32",
    "clip_high_threshold": "float32",
    "sequence_ratio_mask": "float32",
}
"""Loss inputs that may be given as plain lists, and their dtypes."""

SPARSE_KEYS = ("target_tokens", "weights")
"""Loss inputs that travel in CSR form when they are 2-D torch tensors and that is smaller."""


class PromptProvenanceSpan(RecordModel, frozen=True, kw_only=True, tag_field="type", tag="prompt"):
    """Positions that come from the prompt of a recorded sequence.

    Raises:
        ValidationError: the offset or the length is negative.
    """

    sequence_id: str
    offset: int = 0
    length: int

    def __post_init__(self) -> None:
        _check_span(self.offset, self.length)


class SampledProvenanceSpan(
    RecordModel, frozen=True, kw_only=True, tag_field="type", tag="sampled"
):
    """Positions that were sampled as part of a recorded sequence.

    Raises:
        ValidationError: the offset or the length is negative.
    """

    sequence_id: str
    offset: int = 0
    length: int

    def __post_init__(self) -> None:
        _check_span(self.offset, self.length)


LossFnInputs = dict[str, TensorData]
ProvenanceSpans = Sequence[PromptProvenanceSpan | SampledProvenanceSpan]


class Datum(RecordModel, frozen=True):
    """One training example.

    Position i of `model_input` predicts `target_tokens[i]`: shift by one before you build it.

    >>> datum = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [0, 1]})
    >>> datum.loss_fn_inputs["weights"].dtype
    'float32'

    Raises:
        ValidationError: a plain list stands under a key whose dtype is not known.
    """

    model_input: ModelInput
    loss_fn_inputs: Annotated[Mapping[str, Any], Holds(LossFnInputs)] = {}
    model_input_spans: ProvenanceSpans | None = None
    loss_fn_input_spans: ProvenanceSpans | None = None

    def __post_init__(self) -> None:
        given: Any = self.loss_fn_inputs
        if not isinstance(given, Mapping):
            found = type(self.loss_fn_inputs).__name__
            raise ValidationError(f"loss_fn_inputs must be a dict of tensors, not {found}.")
        converted = {key: _to_tensor(key, value) for key, value in self.loss_fn_inputs.items()}
        msgspec.structs.force_setattr(self, "loss_fn_inputs", converted)

    @classmethod
    def from_conversation(
        cls,
        messages: Sequence[Message],
        tokenizer: ChatTokenizer,
        *,
        answers: Literal["all", "last"] = "all",
        tools: Sequence[Any] | None = None,
    ) -> Self:
        """An example for cross_entropy, with weight 1 on what the assistant says and 0 elsewhere.

        `answers` says whether all of the assistant's messages are learned or the last one alone; a
        message with `"weight": 0` is not. The end marker of an answer is learned with it.

        ```python
        tokenizer = training.get_tokenizer()
        messages = [
            {"role": "user", "content": "What is the capital of Germany?"},
            {"role": "assistant", "content": "Berlin."},
        ]
        datum = Datum.from_conversation(messages, tokenizer)
        ```

        Args:
            messages: What was said, each a dict with `role` and `content`.
            tokenizer: The model's, as `TrainingClient.get_tokenizer` gives it.
            answers: Whether `all` of the assistant's messages are learned, or the `last`.
            tools: The tools the template shows to the model.

        Raises:
            ValidationError: nothing is to be learned, the tokenizer has no chat template, or the
                template renders earlier answers differently, so that they need examples of their
                own.
        """
        places = learned_places(messages)
        if answers == "last":
            places = places[-1:]
        examples = encode_answers(messages, places, tools, tokenizer)
        if len(examples) > 1:
            raise ValidationError(
                "The chat template renders earlier answers differently once others follow, so that "
                f"the {len(examples)} answers cannot be learned in one example.",
                hint="Make one example for each answer with answers='last' and the messages up to "
                "it.",
            )
        tokens, is_learned = examples[0]
        return cls(
            ModelInput.from_ints(tokens[:-1]),
            {"target_tokens": tokens[1:], "weights": [float(each) for each in is_learned[1:]]},
        )

    @classmethod
    def from_rollout(
        cls,
        prompt: ModelInput | Sequence[int],
        sequence: SampledSequence,
        advantage: float | Sequence[float],
        *,
        loss_fn: str = "importance_sampling",
    ) -> Self:
        """An example for the policy-gradient losses: the sampled tokens count, the prompt does not.

        `advantage` is one number for the whole answer, or one for each of its tokens. The example
        fits `importance_sampling`, `ppo`, `cispo` and `dro`; with `loss_fn="gspo"` it has the
        `sequence_ratio_mask` too, on the sampled tokens, which only that loss takes.

        >>> from array import array
        >>> answer = SampledSequence(
        ...     stop_reason="stop",
        ...     tokens_raw=array("i", [7, 8]).tobytes(),
        ...     logprobs_raw=array("f", [-1.0, -2.0]).tobytes(),
        ... )
        >>> datum = Datum.from_rollout([1, 2, 3], answer, advantage=0.5)
        >>> datum.loss_fn_inputs["target_tokens"].tolist()
        [2, 3, 7, 8]
        >>> datum.loss_fn_inputs["advantages"].tolist()
        [0.0, 0.0, 0.5, 0.5]

        Args:
            prompt: What was continued.
            sequence: One of a sample's `sequences`.
            advantage: One number for the whole answer, or one for each of its tokens.
            loss_fn: The loss that `forward_backward` is to compute.

        Raises:
            ValidationError: prompt or answer is empty, the answer has no logprobs, or the number of
                advantages is another than that of its tokens.
        """
        given = prompt if isinstance(prompt, ModelInput) else ModelInput.from_ints(prompt)
        return cls(*rollout_example(given, sequence, advantage, loss_fn))

    def with_provenance(
        self,
        model_input: ProvenanceSpans | None = None,
        loss_fn_inputs: ProvenanceSpans | None = None,
    ) -> Datum:
        """The same example, saying which recorded sequence each position comes from.

        Args:
            model_input: Which sequence each position of the input is from.
            loss_fn_inputs: Which one each position of the loss inputs is from.

        Raises:
            ValidationError: the spans do not cover exactly the positions they describe.
        """
        if model_input is not None:
            _check_tiling("model_input", model_input, self.model_input.length)
        if loss_fn_inputs is not None:
            targets = self.loss_fn_inputs.get("target_tokens")
            if targets is not None:
                _check_tiling("loss_fn_inputs", loss_fn_inputs, len(targets))
        return Datum(self.model_input, self.loss_fn_inputs, model_input, loss_fn_inputs)

    @property
    def size_bytes(self) -> int:
        """The estimated size in bytes, by which requests are cut into chunks."""
        tensors: Iterable[TensorData] = self.loss_fn_inputs.values()
        return _input_bytes(self.model_input) + sum(tensor.size_bytes for tensor in tensors)


def _to_tensor(key: str, value: Any) -> TensorData:
    if isinstance(value, TensorData):
        return value
    if isinstance(value, Mapping):
        return TensorData.model_validate(value)
    if hasattr(value, "detach"):
        is_matrix = key in SPARSE_KEYS and value.dim() == 2
        return TensorData.from_torch_sparse(value) if is_matrix else TensorData.from_torch(value)
    if hasattr(value, "__array__"):
        return TensorData.from_numpy(value)
    if key not in LIST_DTYPES:
        raise ValidationError(
            f"loss_fn_inputs[{key!r}] is a plain list, and its dtype is not known.",
            hint=f"Give a TensorData, or use one of {', '.join(sorted(LIST_DTYPES))}.",
        )
    if value is None or isinstance(value, int | float | str):
        raise ValidationError(
            f"loss_fn_inputs[{key!r}] is a {type(value).__name__}, not a list of numbers."
        )
    try:
        tensor = TensorData(value, LIST_DTYPES[key])
    except ValidationError as error:
        raise ValidationError(f"loss_fn_inputs[{key!r}]: {error.message}") from error
    if tensor.shape is None:
        tensor.shape = [tensor.num_values]
    return tensor


def _check_span(offset: int, length: int) -> None:
    if offset < 0 or length < 0:
        raise ValidationError(f"A span cannot have offset={offset} and length={length}.")


def _check_tiling(name: str, spans: ProvenanceSpans, length: int) -> None:
    covered = sum(span.length for span in spans)
    if covered != length:
        raise ValidationError(
            f"The {name} spans must tile its {length} positions exactly; they cover {covered}."
        )


def _input_bytes(model_input: ModelInput) -> int:
    total = 0
    for chunk in model_input.chunks:
        for name in ("raw", "data", "dmel", "location"):
            total += len(getattr(chunk, name, b""))
    return total
