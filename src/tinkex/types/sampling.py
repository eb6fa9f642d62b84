"""What is asked of a sampler, and what it answers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._fields import sent
from tinkex.types._numbers import as_int, make_plain
from tinkex.types._parameters import Parameter, check_parameters
from tinkex.types.tensor import TensorData

if TYPE_CHECKING:
    from numpy.typing import NDArray

StopReason = Literal["stop", "length"]

_SHOWN_TOKENS = 8
"""Tokens in the repr of a sequence."""

EMPTY_LOGPROB = -99999.0
"""The logprob of a top-k cell that holds nothing."""


MAX_LOGIT_BIASES = 300
"""Entries of `SamplingParams.logit_bias`."""


class SamplingParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How to sample.

    `stop` absent means the model's end-of-sequence token stops; `stop=[]` means nothing does. The
    parameters after `top_p` are extensions: only a server that announces them can be asked for
    them, and they are sent only if they differ from their defaults.

    Raises:
        ValidationError: a value lies outside its range.
    """

    max_tokens: Annotated[
        int | None, Parameter(at_least=1, metavar="N", help="End after N tokens.")
    ] = None
    seed: int | None = None
    stop: str | Sequence[str | int] | None = None
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
    return [as_int("a token id in stop", each) for each in found]


class TopkLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The k most likely tokens at each of `length` positions, as raw int32 and float32 bytes."""

    token_ids: bytes
    logprobs: bytes
    k: int
    length: int

    def __repr__(self) -> str:
        return f"<TopkLogprobs {self.k} at each of {self.length} positions>"

    def tolist(self) -> list[list[tuple[int, float]] | None]:
        """Per position its (token, logprob) pairs; None where there are none."""
        ids, logprobs = _ints(self.token_ids), _floats(self.logprobs)
        rows: list[list[tuple[int, float]] | None] = []
        for at in range(0, self.length * self.k, self.k):
            pairs = zip(ids[at : at + self.k], logprobs[at : at + self.k], strict=True)
            rows.append([pair for pair in pairs if pair[1] != EMPTY_LOGPROB] or None)
        return rows


class PromptAltTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Alternative tokens at each prompt position and their logprobs, both [len(prompt)-1, k]."""

    tokens: TensorData
    logprobs: TensorData


class SampledSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled continuation; the stop token, if any, is its last token."""

    stop_reason: StopReason
    sequence_id: str = ""
    tokens_raw: bytes = b""
    logprobs_raw: bytes | None = None
    topk: TopkLogprobs | None = None

    def __repr__(self) -> str:
        count = len(self.tokens_raw) // 4
        shown = ", ".join(map(str, _ints(self.tokens_raw[: 4 * _SHOWN_TOKENS])))
        more = ", ..." if count > _SHOWN_TOKENS else ""
        return f"<SampledSequence {count} tokens [{shown}{more}], {self.stop_reason}>"

    @property
    def tokens(self) -> list[int]:
        """The sampled token ids."""
        return _ints(self.tokens_raw)

    @property
    def logprobs(self) -> list[float] | None:
        """The logprob of each sampled token: after bias, penalties and temperature, before min_p,
        top_k and top_p."""
        return _floats(self.logprobs_raw) if self.logprobs_raw else None

    @property
    def topk_logprobs(self) -> list[list[tuple[int, float]] | None] | None:
        """Per sampled token the most likely tokens there, if they were asked for."""
        return self.topk.tolist() if self.topk else None

    @property
    def tokens_np(self) -> NDArray[Any]:
        """The sampled token ids as an int32 numpy array."""
        return _as_numpy(self.tokens_raw, "<i4")

    @property
    def logprobs_np(self) -> NDArray[Any] | None:
        """The logprobs as a float32 numpy array."""
        return _as_numpy(self.logprobs_raw, "<f4") if self.logprobs_raw else None


class SampleResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a sampler answered to one request."""

    sequences: list[SampledSequence]
    prompt_logprobs_raw: bytes | None = None
    topk_prompt: TopkLogprobs | None = None
    prompt_cache_hit_tokens: int = 0
    target_prompt_logprobs: TensorData | None = None
    prompt_alt_tokens: PromptAltTokens | None = None

    def __repr__(self) -> str:
        scored = len(self.prompt_logprobs_raw or b"") // 4
        prompt = f", {scored} prompt logprobs" if scored else ""
        return f"<SampleResponse {self.sequences}{prompt}>"

    @property
    def prompt_logprobs(self) -> list[float | None] | None:
        """The logprob of each prompt token given those before it; None where there is none."""
        if not self.prompt_logprobs_raw:
            return None
        return [None if math.isnan(v) else v for v in _floats(self.prompt_logprobs_raw)]

    @property
    def prompt_logprobs_np(self) -> NDArray[Any] | None:
        """The prompt logprobs as a float32 numpy array, NaN where there is none."""
        return _as_numpy(self.prompt_logprobs_raw, "<f4") if self.prompt_logprobs_raw else None

    @property
    def topk_prompt_logprobs(self) -> list[list[tuple[int, float]] | None] | None:
        """Per prompt position the most likely tokens there, if they were asked for."""
        return self.topk_prompt.tolist() if self.topk_prompt else None


def _ints(raw: bytes) -> list[int]:
    values = array("i")
    values.frombytes(raw)
    return values.tolist()


def _floats(raw: bytes) -> list[float]:
    values = array("f")
    values.frombytes(raw)
    return values.tolist()


def _as_numpy(raw: bytes, code: str) -> NDArray[Any]:
    import numpy as np

    array_: NDArray[Any] = np.frombuffer(raw, dtype=code)
    return array_
