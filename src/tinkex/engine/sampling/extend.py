"""Chooses the next token of each sequence, and ends the sequences it completes.

Shapes: B sequences · V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tinkex.engine.interface import RequestError, SampleResult
from tinkex.engine.sampling.logits_processors import Pipeline, Row
from tinkex.engine.sampling.state import RunningSequence
from tinkex.engine.sampling.token_choice import choose, top_logprobs

__all__ = ["extend", "settle"]


def extend(sequences: Sequence[RunningSequence], logits_BV: Tensor, pipeline: Pipeline) -> None:
    """Draws a token for each sequence from its row of logits, and records its logprob."""
    processed = [
        Row(index, each.job.request.params, each.history)
        for index, each in enumerate(sequences)
        if each.job.is_processed
    ]
    rules = [each.job.request.params for each in sequences]
    uniforms = [each.random.random() for each in sequences]
    choice = choose(logits_BV, rules, uniforms, processed, pipeline)
    tokens, logprobs = choice.token_N.tolist(), choice.logprob_N.tolist()
    for each in processed:
        if each.history is not None:
            each.history.add(tokens[each.index])
    wanted: dict[int, list[int]] = {}
    for row, sequence in enumerate(sequences):
        sequence.tokens.append(tokens[row])
        sequence.logprobs.append(logprobs[row])
        wanted.setdefault(sequence.job.request.topk_sample_logprobs, []).append(row)
    for k, rows in wanted.items():
        if k:
            ids, best = top_logprobs(choice.tempered_NV[rows], choice.lse_N[rows], k)
            for row, *one in zip(rows, ids.cpu().numpy(), best.cpu().numpy(), strict=True):
                sequences[row].topk.append((one[0], one[1]))


def settle(sequence: RunningSequence) -> SampleResult | None:
    """Ends the sequence if its newest token does; returns the result if that
    completes the request."""
    job = sequence.job
    if not math.isfinite(sequence.logprobs[-1]):
        sequence.ended = "stop"
        job.result = SampleResult(request_id=job.request.request_id, error=_RUINED)
    elif job.stop.is_met(sequence.tokens):
        sequence.ended = "stop"
    elif len(sequence.tokens) >= job.max_new:
        sequence.ended = "length"
    if sequence.ended is None:
        return None
    if job.result.error is None:
        job.result.sequences[sequence.index] = sequence.to_answer()
    job.unfinished -= 1
    return None if job.unfinished else job.result


_RUINED = RequestError(
    message="The model gives no finite logprobs, so nothing can be sampled from it. Its adapter "
    "was probably ruined by a learning rate far too high; go back to an earlier checkpoint.",
    code="not-finite",
)
