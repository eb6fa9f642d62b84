"""What is asked of a sampler, and what it answers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tinkex.errors import ValidationError
from tinkex.types._fields import sent
from tinkex.types._numbers import as_int, make_plain
from tinkex.types.tensor import TensorData

if TYPE_CHECKING:
    from numpy.typing import NDArray

StopReason = Literal["stop", "length"]

EMPTY_LOGPROB = -99999.0
"""The logprob of a top-k cell that holds nothing."""


class SamplingParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How to sample.

    `stop` absent means the model's end-of-sequence token stops; `stop=[]` means nothing does.

    Raises:
        ValidationError: a value lies outside its range.
    """

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | Sequence[str] | Sequence[int] | None = None
    temperature: float = sent(1.0)
    top_k: int = sent(-1)
    top_p: float = sent(1.0)

    def __post_init__(self) -> None:
        make_plain(self, ints=("max_tokens", "seed", "top_k"), floats=("temperature", "top_p"))
        msgspec.structs.force_setattr(self, "stop", _plain_stop(self.stop))
        _require(
            self.max_tokens is None or self.max_tokens >= 1,
            "max_tokens",
            self.max_tokens,
            "at least 1",
        )
        _require(
            math.isfinite(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "0 or more",
        )
        _require(self.top_k == -1 or self.top_k >= 1, "top_k", self.top_k, "-1 (off) or at least 1")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")


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


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise ValidationError(f"{name}={value!r} must be {rule}.")


class TopkLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The k most likely tokens at each of `length` positions, as raw int32 and float32 bytes."""

    token_ids: bytes
    logprobs: bytes
    k: int
    length: int

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

    @property
    def tokens(self) -> list[int]:
        """The sampled token ids."""
        return _ints(self.tokens_raw)

    @property
    def logprobs(self) -> list[float] | None:
        """The logprob of each sampled token under the tempered distribution."""
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
