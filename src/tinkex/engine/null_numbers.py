"""The null engine's numbers: hashes of the request, in the shapes of real results."""

from __future__ import annotations

import hashlib

import numpy as np

from tinkex.engine.interface import (
    FloatArray,
    ModelInfo,
    SampledSequence,
    SampleRequest,
    SampleResult,
    SequenceDelta,
    TopK,
)
from tinkex.engine.sampling.stops import Stops

__all__ = [
    "digest",
    "hashed_logprobs",
    "hashed_prompt_scores",
    "hashed_sequence",
    "whole_sequences",
]


def hashed_sequence(
    weights: str, request: SampleRequest, index: int, count: int, info: ModelInfo
) -> SampledSequence:
    """Returns sample `index` of the request: tokens fixed by weights, seed and prompt."""
    seed = digest(weights, str(request.params.seed), str(index), request.tokens.tobytes().hex())
    rng = np.random.default_rng(int(seed[:16], 16))
    tokens = rng.integers(0, info.vocab_size, size=count, dtype=np.int32)
    stops = Stops.of(request.params)
    ends = {*stops.token_ids, *(info.eos_token_ids if stops.at_eos else ())}
    hits = np.flatnonzero(np.isin(tokens, sorted(ends)))
    if hits.size:
        tokens = tokens[: hits[0] + 1]
    k = request.topk_sample_logprobs
    return SampledSequence(
        tokens=tokens,
        logprobs=hashed_logprobs(weights, tokens),
        stop_reason="stop" if hits.size else "length",
        topk=hashed_topk(weights, tokens.size, k) if k else None,
    )


def whole_sequences(result: SampleResult) -> list[SequenceDelta]:
    """Returns all tokens of a result as they are streamed."""
    return [
        SequenceDelta(
            request_id=result.request_id,
            index=index,
            offset=0,
            tokens=each.tokens,
            logprobs=each.logprobs,
            topk=each.topk,
            stop_reason=each.stop_reason,
        )
        for index, each in enumerate(result.sequences)
    ]


def hashed_prompt_scores(result: SampleResult, weights: str, request: SampleRequest) -> None:
    """Fills in the prompt scores that the request asks for."""
    rows = request.tokens.size - 1
    if request.prompt_logprobs:
        scores = hashed_logprobs(weights, request.tokens)
        first = request.tokens.size - (request.prompt_logprobs_last_n or rows)
        scores[:first] = np.nan
        result.prompt_logprobs = scores
    if request.topk_prompt_logprobs:
        result.topk_prompt = hashed_topk(weights, rows + 1, request.topk_prompt_logprobs)
        result.topk_prompt.logprobs[0] = -99999.0
        result.topk_prompt.token_ids[0] = 0
    if request.target_prompt_logprobs is not None:
        targets = request.target_prompt_logprobs
        result.target_prompt_logprobs = np.where(targets < 0, 0, hashed_logprobs(weights, targets))
    if request.prompt_alt_tokens_k:
        result.prompt_alt = hashed_topk(weights, rows, request.prompt_alt_tokens_k)


def hashed_topk(weights: str, rows: int, k: int) -> TopK:
    ids = np.tile(np.arange(k, dtype=np.int32), (rows, 1))
    return TopK(token_ids=ids, logprobs=-np.sort(-hashed_logprobs(weights, ids), axis=1))


def hashed_logprobs(weights: str, tokens: np.ndarray) -> FloatArray:
    """Returns a number in (-8, 0] for each token, fixed by the weights, the token and its place."""
    key = np.uint64(int(digest(weights)[:15], 16))
    place = np.arange(tokens.size, dtype=np.uint64).reshape(tokens.shape)
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= key + place * np.uint64(0xBF58476D1CE4E5B9)
    mixed *= np.uint64(0x94D049BB133111EB)
    return (-(mixed >> np.uint64(40)).astype(np.float64) / 2**21).astype(np.float32)


def digest(*parts: str) -> str:
    """Returns a hash of these texts, in hexadecimal."""
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
