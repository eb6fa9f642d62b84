"""Choosing tokens for many rows at once gives what choosing for each alone would."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinkex.engine.sampling.token_choice import choose, top_logprobs
from tinkex.types import SamplingParams

RULES = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 1, 3, 50, 10_000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
)


def _reference(logits: np.ndarray, rule: SamplingParams, uniform: float) -> set[int]:
    """The tokens a row may choose: two where the number falls on an edge."""
    if rule.temperature == 0:
        return {int(logits.argmax())}
    tempered = logits.astype(np.float64) / rule.temperature
    probs = np.exp(tempered - tempered.max())
    probs /= probs.sum()
    order = np.arange(len(probs))
    if 0 < rule.top_k < len(probs) or rule.top_p < 1.0:
        order = np.argsort(-probs, kind="stable")
        order = order[: rule.top_k] if rule.top_k > 0 else order
        share = np.cumsum(probs[order]) / probs[order].sum()
        if rule.top_p < 1.0:
            order = order[: int((share < rule.top_p).sum()) + 1]
    ends = np.cumsum(probs[order])
    near = np.array([uniform - 1e-5, uniform, uniform + 1e-5]).clip(0) * ends[-1]
    places = np.searchsorted(ends, near, side="right").clip(max=len(order) - 1)
    return {int(order[place]) for place in places}


@settings(max_examples=80, deadline=None)
@given(
    rules=st.lists(st.tuples(RULES, st.floats(0, 0.999)), min_size=1, max_size=12),
    vocab=st.sampled_from([7, 256, 300, 1024]),
    seed=st.integers(0, 99),
)
def test_every_row_follows_its_own_rule(rules, vocab, seed) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, (len(rules), vocab)).astype(np.float32)
    choice = choose(
        torch.from_numpy(logits.copy()),
        [rule for rule, _ in rules],
        [number for _, number in rules],
    )
    for row, (rule, uniform) in enumerate(rules):
        token = int(choice.token_N[row])
        assert token in _reference(logits[row], rule, uniform)
        tempered = torch.from_numpy(logits[row]).double() / (rule.temperature or 1.0)
        expected = float(tempered.log_softmax(-1)[token])
        # float32 has seven digits, whatever the size of the number.
        assert float(choice.logprob_N[row]) == pytest.approx(expected, rel=1e-6, abs=2e-6)
    ids, best = top_logprobs(choice.tempered_NV, choice.lse_N, 5)
    for row, (rule, _) in enumerate(rules):
        tempered = torch.from_numpy(logits[row]).double() / (rule.temperature or 1.0)
        expected = tempered.log_softmax(-1).topk(5)
        assert ids[row].tolist() == expected.indices.tolist()
        np.testing.assert_allclose(best[row].numpy(), expected.values.numpy(), atol=2e-5)


def test_numbers_at_either_end_stay_inside() -> None:
    logits = torch.tensor([[0.0, -200.0, 1.0, -200.0]] * 2)
    choice = choose(logits, [SamplingParams()] * 2, [0.0, 1.0 - 1e-17])
    assert choice.token_N.tolist() == [0, 2]
