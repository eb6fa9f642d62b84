"""Scores of a prompt's own tokens: logprobs, top-k, chosen targets, and alternative draws.

Row i of the hidden states speaks of prompt token i + 1. Plain logprobs and targets of all prompts
in a prefill are scored together, like a training forward; the rarer answers prompt by prompt.

Shapes: T rows of the prefill · P targets · N rows of a chunk · V vocabulary · D hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.interface import SampleRequest, SampleResult, SamplingParams, TopK
from tinkex.engine.model.lm_head import Head, Targets, chunk_rows, score
from tinkex.engine.sampling.token_choice import choose, stream, top_logprobs

__all__ = ["EMPTY_LOGPROB", "PromptToScore", "first_row_needed", "score_prompts"]

EMPTY_LOGPROB = -99999.0
_ALTERNATIVES = 1_000_003  # a random stream apart from those of the samples


def first_row_needed(request: SampleRequest) -> int:
    """Returns the first row whose hidden state is needed; the last row predicts the token
    after the prompt."""
    if request.target_prompt_logprobs is not None or request.prompt_alt_tokens_k:
        return 0
    last = int(request.tokens.size) - 1
    if request.prompt_logprobs or request.topk_prompt_logprobs:
        return min(_first_scored(request) - 1, last)
    return last


def _first_scored(request: SampleRequest) -> int:
    last_n = request.prompt_logprobs_last_n
    return 1 if last_n is None else int(request.tokens.size) - last_n


@dataclass(frozen=True, slots=True)
class PromptToScore:
    """A prompt, the index of its first row in the hidden states, and the result to fill in.

    Rows before the first one needed may be missing: `start` is where the first would be.
    """

    request: SampleRequest
    start: int
    result: SampleResult

    @property
    def first_scored(self) -> int:
        """The first prompt token whose logprob is requested."""
        return _first_scored(self.request)


def score_prompts(head: Head, hidden_TD: Tensor, prompts: list[PromptToScore]) -> None:
    """Fills in every requested prompt score."""
    _score_logprobs(head, hidden_TD, [p for p in prompts if p.request.prompt_logprobs])
    targeted = [p for p in prompts if p.request.target_prompt_logprobs is not None]
    _score_targets(head, hidden_TD, targeted)
    for prompt in prompts:
        if prompt.request.topk_prompt_logprobs:
            prompt.result.topk_prompt = _top_k(head, hidden_TD, prompt)
        if prompt.request.prompt_alt_tokens_k:
            prompt.result.prompt_alt = _alternatives(head, hidden_TD, prompt)


def _score_logprobs(head: Head, hidden_TD: Tensor, prompts: list[PromptToScore]) -> None:
    cells = []
    for prompt in prompts:
        places = np.arange(prompt.first_scored, prompt.request.tokens.size)
        cells.append((prompt.start + places - 1, np.asarray(prompt.request.tokens)[places]))
    for prompt, scores in zip(prompts, _score_cells(head, hidden_TD, cells), strict=True):
        logprobs = np.full(prompt.request.tokens.size, np.nan, np.float32)
        logprobs[prompt.first_scored :] = scores
        prompt.result.prompt_logprobs = logprobs


def _score_targets(head: Head, hidden_TD: Tensor, prompts: list[PromptToScore]) -> None:
    cells, masks = [], []
    for prompt in prompts:
        targets = np.asarray(prompt.request.target_prompt_logprobs)
        row, column = np.nonzero(targets >= 0)
        cells.append((prompt.start + row, targets[row, column]))
        masks.append(targets >= 0)
    for prompt, mask, scores in zip(
        prompts, masks, _score_cells(head, hidden_TD, cells), strict=True
    ):
        logprobs = np.zeros(mask.shape, np.float32)
        logprobs[mask] = scores
        prompt.result.target_prompt_logprobs = logprobs


def _score_cells(
    head: Head, hidden_TD: Tensor, cells: list[tuple[np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """Returns the logprobs of (rows, tokens), one array per entry; only the rows
    named are computed."""
    if not cells:
        return []
    rows = torch.from_numpy(np.concatenate([row for row, _ in cells]).astype(np.int64))
    tokens = torch.from_numpy(np.concatenate([token for _, token in cells]).astype(np.int64))
    edges = np.cumsum([len(row) for row, _ in cells])[:-1]
    if rows.numel() == 0:
        return np.split(np.empty(0, np.float32), edges)
    device = hidden_TD.device
    used, place = torch.unique(rows, return_inverse=True)
    some_head = Head(head.linear, head.lora.select(used))
    targets = Targets(place.to(device), tokens.to(device))
    logprobs_P = score(some_head, hidden_TD[used.to(device)], targets)
    return np.split(logprobs_P.cpu().numpy(), edges)


def _top_k(head: Head, hidden_TD: Tensor, prompt: PromptToScore) -> TopK:
    k, size = prompt.request.topk_prompt_logprobs, int(prompt.request.tokens.size)
    ids = np.zeros((size, k), np.int32)
    logprobs = np.full((size, k), EMPTY_LOGPROB, np.float32)
    first = prompt.start + prompt.first_scored - 1
    for start, end, logits_NV in _logit_chunks(head, hidden_TD, first, prompt.start + size - 1):
        places = slice(start - prompt.start + 1, end - prompt.start + 1)
        lse_N = torch.logsumexp(logits_NV, dim=-1)
        ids_NK, logprobs_NK = top_logprobs(logits_NV, lse_N, k)
        ids[places], logprobs[places] = ids_NK.cpu().numpy(), logprobs_NK.cpu().numpy()
    return TopK(token_ids=ids, logprobs=logprobs)


def _alternatives(head: Head, hidden_TD: Tensor, prompt: PromptToScore) -> TopK:
    request = prompt.request
    k, rows = request.prompt_alt_tokens_k, int(request.tokens.size) - 1
    rule = SamplingParams(temperature=request.params.temperature)
    uniforms = stream(request.params.seed, _ALTERNATIVES).random((rows, k))
    ids = np.zeros((rows, k), np.int64)
    logprobs = np.zeros((rows, k), np.float32)
    for start, end, logits_NV in _logit_chunks(head, hidden_TD, prompt.start, prompt.start + rows):
        places = slice(start - prompt.start, end - prompt.start)
        lse_N = torch.logsumexp(logits_NV, dim=-1)
        for j in range(k):
            choice = choose(logits_NV.clone(), [rule] * (end - start), list(uniforms[places, j]))
            scores_N = logits_NV.gather(1, choice.token_N[:, None]).squeeze(1) - lse_N
            ids[places, j] = choice.token_N.cpu().numpy()
            logprobs[places, j] = scores_N.cpu().numpy()
    return TopK(token_ids=ids, logprobs=logprobs)


def _logit_chunks(
    head: Head, hidden_TD: Tensor, first: int, last: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Yields rows first..last in chunks: the start and end of each, and its logits."""
    for start, end in chunk_rows(last - first, head.vocab_size):
        begin, stop = first + start, first + end
        yield begin, stop, head.rows(begin, stop).logits(hidden_TD[begin:stop])
