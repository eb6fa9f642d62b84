"""The values of sampling that cross the engine's interface: requests, results, streamed tokens."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tinkex.engine.errors import RequestError
from tinkex.types.sampling import SamplingParams

__all__ = [
    "FloatArray",
    "IntArray",
    "SampleRequest",
    "SampleResult",
    "SampledSequence",
    "SamplingProgress",
    "SequenceDelta",
    "TopK",
]

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.floating]


class SampleRequest(msgspec.Struct, kw_only=True, tag="sample"):
    """A prompt to continue and/or to score, from a snapshot or (sampler_id None) the base model.

    `params` is the client's own value. Without `max_tokens` an answer runs to the end of the
    context; `seed` makes sample i a function of (seed, i), whatever else runs. The token that
    completes a stop is part of the answer.
    """

    request_id: str
    model: str
    tokens: IntArray
    sampler_id: str | None = None
    num_samples: int = 1
    params: SamplingParams = SamplingParams()
    prompt_logprobs: bool = False
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: IntArray | None = None  # [len(prompt) - 1, K], -1 = skip
    prompt_alt_tokens_k: int = 0
    cache_scope: str = ""  # prompts share what was computed within one scope; scopes take turns
    stream: bool = False  # its tokens are in `SamplingProgress.streamed` as they are made


class TopK(msgspec.Struct, kw_only=True):
    """`token_ids` and `logprobs` of shape [rows, k]; an empty cell is id 0, logprob -99999."""

    token_ids: IntArray
    logprobs: FloatArray


class SampledSequence(msgspec.Struct, kw_only=True):
    """One continuation. `logprobs` are of the distribution after bias, penalties and temperature,
    before min_p, top_k and top_p. At temperature 0 (greedy) the division is left out.
    """

    tokens: IntArray
    logprobs: FloatArray
    stop_reason: Literal["stop", "length"]
    topk: TopK | None = None


class SampleResult(msgspec.Struct, kw_only=True):
    """The result of one request. With `error` set the other fields are empty.

    Prompt scores are of the untempered distribution. `prompt_logprobs` has len(prompt) entries,
    the first NaN, and NaN before the requested suffix; `topk_prompt` has as many rows, empty
    cells where nothing was scored. `target_prompt_logprobs` is [len(prompt) - 1, K], 0 where the
    request has -1. `prompt_alt` is [len(prompt) - 1, k]: independent draws at the request's
    temperature, their logprobs untempered like the other prompt scores.
    """

    request_id: str
    sequences: list[SampledSequence] = msgspec.field(default_factory=list)
    prompt_logprobs: FloatArray | None = None
    topk_prompt: TopK | None = None
    target_prompt_logprobs: FloatArray | None = None
    prompt_alt: TopK | None = None
    prompt_cache_hit_tokens: int = 0
    error: RequestError | None = None


class SequenceDelta(msgspec.Struct, kw_only=True):
    """Tokens of one sequence of a streamed request, made since the last `step_sampling` call.

    They begin at token `offset` of the sequence `index`. The last delta of a sequence says why it
    ended. All deltas of a sequence, put together, are its part of the `SampleResult`.
    """

    request_id: str
    index: int
    offset: int
    tokens: IntArray
    logprobs: FloatArray
    topk: TopK | None = None
    stop_reason: Literal["stop", "length"] | None = None


class SamplingProgress(msgspec.Struct, kw_only=True):
    """Results of one `step_sampling` call, and the work still queued."""

    finished: list[SampleResult]
    running: int  # sequences being decoded
    waiting: int  # prompts not finished, and parked sequences
    streamed: list[SequenceDelta] = []  # of requests that finished in this call as well
