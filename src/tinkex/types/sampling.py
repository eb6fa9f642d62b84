"""Sampling parameters (`SamplingParams`, each with its range) and the results of sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._fields import sent
from tinkex.types._model import Holds, ProtocolModel, RecordModel
from tinkex.types._model_methods import Unknown
from tinkex.types._numbers import as_int, make_plain
from tinkex.types._parameters import Parameter, check_parameters, extensions
from tinkex.types._sample_arrays import (
    EMPTY_LOGPROB,
    Pairs,
    floats_of,
    ints_of,
    numpy_of,
    pack_floats,
    pack_ints,
    rectangle,
    renamed,
)
from tinkex.types.tensor import TensorData

if TYPE_CHECKING:
    from numpy.typing import NDArray

StopReason = Literal["stop", "length"]
StopWords = str | Sequence[str] | Sequence[int] | None

_SHOWN_TOKENS = 8
"""Maximum tokens in the repr of a sequence."""


MAX_LOGIT_BIASES = 300
"""Maximum entries of `SamplingParams.logit_bias`."""


class SamplingParams(
    ProtocolModel, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Parameters of a sampling request.

    `stop` absent means the model's end-of-sequence token stops; `stop=[]` means nothing does. The
    parameters after `top_p` are extensions: only a server that announces them is sent
    them, and they are sent only if they differ from their defaults.

    Raises:
        ValidationError: a value lies outside its range.
    """

    unknown_fields: ClassVar[Unknown] = "warn"

    max_tokens: Annotated[
        int | None, Parameter(at_least=1, metavar="N", help="End after N tokens.")
    ] = None
    seed: int | None = None
    stop: Annotated[str | Sequence[str | int] | None, Holds(StopWords)] = None
    temperature: Annotated[
        float, Parameter(at_least=0, metavar="T", help="0 is always the likeliest.")
    ] = sent(1.0)
    top_k: Annotated[
        int, Parameter(at_least=1, off=-1, metavar="K", help="Of the K likeliest only.")
    ] = sent(-1)
    top_p: Annotated[
        float,
        Parameter(above=0, at_most=1, metavar="P", help="Of the likeliest that make up P only."),
    ] = sent(1.0)
    min_p: Annotated[
        float,
        Parameter(
            at_least=0,
            at_most=1,
            metavar="P",
            help="Of tokens at least P times as likely as the likeliest only.",
            is_extension=True,
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Parameter(
            at_least=0.01,
            at_most=100,
            metavar="X",
            help="Above 1, tokens of prompt and answer become less likely.",
            is_extension=True,
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        Parameter(
            at_least=-2,
            at_most=2,
            metavar="X",
            help="Taken from the logit of each token in the answer.",
            is_extension=True,
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Parameter(
            at_least=-2,
            at_most=2,
            metavar="X",
            help="Taken from a token's logit once for each time it is in the answer.",
            is_extension=True,
        ),
    ] = 0.0
    logit_bias: Annotated[
        Mapping[int, float] | None,
        Parameter(
            at_least=-100,
            at_most=100,
            max_entries=MAX_LOGIT_BIASES,
            metavar="ID=BIAS",
            help="Added to the logit of this token.",
            is_extension=True,
        ),
    ] = None

    def __post_init__(self) -> None:
        make_plain(self, ints=("seed",))
        msgspec.structs.force_setattr(self, "stop", _plain_stop(self.stop))
        check_parameters(self)


def _plain_stop(stop: Any) -> str | list[str] | list[int] | None:
    """Stop texts or stop token ids as a plain list; a single text and None as they are."""
    if stop is None or isinstance(stop, str):
        return stop
    try:
        found = stop.tolist() if hasattr(stop, "tolist") else list(stop)
    except TypeError:
        raise ValidationError(f"stop={stop!r} must be a text or a list.") from None
    if not isinstance(found, list):
        raise ValidationError(f"stop={stop!r} must be a list of token ids; write stop=[{found}].")
    if all(isinstance(each, str) for each in found):
        return found
    if text := next((each for each in found if isinstance(each, str)), None):
        raise ValidationError(f"stop={text!r} stands among token ids; give one or the other.")
    return [as_int("a token id in stop", each) for each in found]


SamplingParams.beyond_protocol = frozenset(extensions(SamplingParams))


class TopkLogprobs(RecordModel, frozen=True, kw_only=True):
    """The k most likely tokens at each of `length` positions.

    Made of two matrices, `TopkLogprobs(token_ids=..., logprobs=...)`, of shape (length, k). An
    empty cell has the token 0 and the logprob -99999.
    """

    token_ids_raw: Annotated[bytes, Holds(Any, "token_ids")]
    logprobs_raw: Annotated[bytes, Holds(Any, "logprobs")]
    k: int
    length: int

    def __repr__(self) -> str:
        return f"<TopkLogprobs {self.k} at each of {self.length} positions>"

    @classmethod
    def _arguments(
        cls, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found = {**dict(zip(("token_ids", "logprobs"), args, strict=False)), **given}
        shape = getattr(found.get("token_ids"), "shape", None)
        if shape is not None and len(shape) == 2:
            found = {"length": int(shape[0]), "k": int(shape[1]), **found}
        return (), renamed((), found, (), _TOPK_FORMS)

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[tuple[int, float]] | None]) -> TopkLogprobs:
        """Builds the matrices from rows of (token, logprob) pairs, which may differ in length."""
        return cls(**rectangle(rows))

    @property
    def token_ids(self) -> NDArray[Any]:
        """The token ids as an int32 numpy matrix."""
        return numpy_of(self.token_ids_raw, "<i4").reshape(self.length, self.k)

    @property
    def logprobs(self) -> NDArray[Any]:
        """The logprobs as a float32 numpy matrix."""
        return numpy_of(self.logprobs_raw, "<f4").reshape(self.length, self.k)

    def tolist(self) -> Pairs:
        """Returns per position its (token, logprob) pairs; None where there are none."""
        ids, logprobs = ints_of(self.token_ids_raw), floats_of(self.logprobs_raw)
        rows: Pairs = []
        if not self.k:
            return rows
        for at in range(0, self.length * self.k, self.k):
            pairs = zip(ids[at : at + self.k], logprobs[at : at + self.k], strict=True)
            rows.append([pair for pair in pairs if pair[1] != EMPTY_LOGPROB] or None)
        return rows


_TOPK_FORMS = {
    "token_ids": ("token_ids_raw", pack_ints),
    "logprobs": ("logprobs_raw", pack_floats),
}


class PromptAltTokens(RecordModel, frozen=True):
    """Alternative tokens at each prompt position and their logprobs, both [len(prompt)-1, k]."""

    tokens: TensorData
    logprobs: TensorData


class SampledSequence(RecordModel, frozen=True, kw_only=True):
    """One sampled continuation; the stop token, if any, is its last token.

    Made of lists or arrays: `SampledSequence(stop_reason="stop", tokens=[1, 2], logprobs=[-0.5,
    -0.1])`, or with the official names `tokens_np`, `logprobs_np` and `topk_logprobs_np`.
    """

    stop_reason: StopReason
    sequence_id: str = ""
    tokens_raw: Annotated[bytes, Holds(list[int], "tokens")] = b""
    logprobs_raw: Annotated[bytes | None, Holds(list[float] | None, "logprobs")] = None
    topk: Annotated[TopkLogprobs | None, Holds(Pairs | None, "topk_logprobs")] = None

    @classmethod
    def _arguments(
        cls, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not args and "tokens_raw" in given:
            return (), given
        return (), renamed(args, given, _SEQUENCE_ORDER, _SEQUENCE_FORMS)

    def __repr__(self) -> str:
        count = len(self.tokens_raw) // 4
        shown = ", ".join(map(str, ints_of(self.tokens_raw[: 4 * _SHOWN_TOKENS])))
        more = ", ..." if count > _SHOWN_TOKENS else ""
        return f"<SampledSequence {count} tokens [{shown}{more}], {self.stop_reason}>"

    @property
    def tokens(self) -> list[int]:
        """The sampled token ids."""
        return ints_of(self.tokens_raw)

    @property
    def logprobs(self) -> list[float] | None:
        """The logprob of each sampled token: after bias, penalties and temperature, before min_p,
        top_k and top_p."""
        return floats_of(self.logprobs_raw) if self.logprobs_raw else None

    @property
    def topk_logprobs(self) -> Pairs | None:
        """Per sampled token the most likely tokens at its position, if requested."""
        return self.topk.tolist() if self.topk else None

    @property
    def tokens_np(self) -> NDArray[Any]:
        """The sampled token ids as an int32 numpy array."""
        return numpy_of(self.tokens_raw, "<i4")

    @property
    def logprobs_np(self) -> NDArray[Any] | None:
        """The logprobs as a float32 numpy array."""
        return numpy_of(self.logprobs_raw, "<f4") if self.logprobs_raw else None

    @property
    def topk_logprobs_np(self) -> TopkLogprobs | None:
        """The most likely tokens as numpy matrices: `token_ids` and `logprobs`."""
        return self.topk


class SampleResponse(RecordModel, frozen=True, kw_only=True):
    """The result of one sampling request."""

    sequences: list[SampledSequence]
    prompt_logprobs_raw: Annotated[
        bytes | None, Holds(list[float | None] | None, "prompt_logprobs")
    ] = None
    topk_prompt: Annotated[TopkLogprobs | None, Holds(Pairs | None, "topk_prompt_logprobs")] = None
    prompt_cache_hit_tokens: int = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens: PromptAltTokens | None = None

    @classmethod
    def _arguments(
        cls, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), renamed(args, given, _RESPONSE_ORDER, _RESPONSE_FORMS)

    def __repr__(self) -> str:
        scored = len(self.prompt_logprobs_raw or b"") // 4
        prompt = f", {scored} prompt logprobs" if scored else ""
        return f"<SampleResponse {self.sequences}{prompt}>"

    @property
    def prompt_logprobs(self) -> list[float | None] | None:
        """The logprob of each prompt token given those before it; None where there is none."""
        if not self.prompt_logprobs_raw:
            return None
        return [None if math.isnan(v) else v for v in floats_of(self.prompt_logprobs_raw)]

    @property
    def prompt_logprobs_np(self) -> NDArray[Any] | None:
        """The prompt logprobs as a float32 numpy array, NaN where there is none."""
        return numpy_of(self.prompt_logprobs_raw, "<f4") if self.prompt_logprobs_raw else None

    @property
    def topk_prompt_logprobs(self) -> Pairs | None:
        """Per prompt position the most likely tokens, if requested."""
        return self.topk_prompt.tolist() if self.topk_prompt else None

    @property
    def topk_prompt_logprobs_np(self) -> TopkLogprobs | None:
        """The most likely tokens as numpy matrices: `token_ids` and `logprobs`."""
        return self.topk_prompt


def _same(value: Any) -> Any:
    return value


_SEQUENCE_ORDER = (
    *("stop_reason", "sequence_id", "tokens_np", "logprobs_np", "topk_logprobs_np"),
    *("_tokens_list", "_logprobs_list", "_topk_logprobs_list"),
)
_SEQUENCE_FORMS = {
    **dict.fromkeys(("tokens", "tokens_np", "_tokens_list"), ("tokens_raw", pack_ints)),
    **dict.fromkeys(("logprobs", "logprobs_np", "_logprobs_list"), ("logprobs_raw", pack_floats)),
    **dict.fromkeys(("topk_logprobs", "_topk_logprobs_list"), ("topk", TopkLogprobs.from_rows)),
    "topk_logprobs_np": ("topk", _same),
}
_RESPONSE_ORDER = (
    *("sequences", "prompt_logprobs_np", "topk_prompt_logprobs_np", "target_prompt_logprobs"),
    *("prompt_cache_hit_tokens", "prompt_alt_tokens"),
    *("_prompt_logprobs_list", "_topk_prompt_logprobs_list"),
)
_RESPONSE_FORMS = {
    **dict.fromkeys(
        ("prompt_logprobs", "prompt_logprobs_np", "_prompt_logprobs_list"),
        ("prompt_logprobs_raw", pack_floats),
    ),
    **dict.fromkeys(
        ("topk_prompt_logprobs", "_topk_prompt_logprobs_list"),
        ("topk_prompt", TopkLogprobs.from_rows),
    ),
    "topk_prompt_logprobs_np": ("topk_prompt", _same),
}
