"""Logprobs and their gradients from the head against a plain log-softmax with autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tinkex.engine.lora.adapter import LoraBatch
from tinkex.engine.model import lm_head as heads
from tinkex.engine.model.lm_head import Head, Targets, score, score_with_gradient
from tinkex.engine.ops.linear import FrozenLinear

ROWS, WIDTH, VOCABULARY = 100, 16, 300


def _head(size: float) -> tuple[Head, Tensor]:
    """A head, and hidden states whose logits are about as large as `size`."""
    torch.manual_seed(5)
    weight, hidden = torch.randn(VOCABULARY, WIDTH), torch.randn(ROWS, WIDTH)
    lora = LoraBatch([(ROWS, None)])
    return Head(FrozenLinear(weight), lora), hidden * size / WIDTH**0.5


def _targets() -> Targets:
    """Some rows have none, some several, some the same twice."""
    row_P = torch.randint(0, ROWS, (2 * ROWS,)).sort().values
    return Targets(row_P, torch.randint(0, VOCABULARY, row_P.shape))


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "CHUNK_BYTES", 40 * 4 * VOCABULARY)


@pytest.mark.parametrize("size", [1.0, 30.0, 300.0])
def test_logprobs_of_likely_and_of_impossible_tokens(size: float) -> None:
    head, hidden = _head(size)
    targets = _targets()
    wanted = torch.log_softmax(hidden.double() @ head.linear.weight_OD.double().T, -1)
    wanted_P = wanted[targets.row_P, targets.token_P]
    assert (wanted_P.min() < -200) == (size == 300.0), "beyond what a float32 can be exp'ed to"
    found = score(head, hidden, targets)
    torch.testing.assert_close(found.double(), wanted_P, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("slope", ["one", "zero and one", "any"])
@pytest.mark.parametrize("size", [1.0, 300.0])
def test_the_gradient_by_the_hidden_states(size: float, slope: str) -> None:
    head, hidden = _head(size)
    targets = _targets()
    count = targets.row_P.shape
    slopes = {
        "one": -torch.ones(count),
        "zero and one": -torch.randint(0, 2, count).float(),
        "any": torch.randn(count),
    }[slope]
    plain = hidden.double().requires_grad_(True)
    logprobs = torch.log_softmax(plain @ head.linear.weight_OD.double().T, -1)
    (logprobs[targets.row_P, targets.token_P] * slopes).sum().backward()
    is_live = slopes != 0
    found, gradient = score_with_gradient(
        head, hidden, targets, is_live, lambda place, _: slopes[place]
    )
    torch.testing.assert_close(found, score(head, hidden, targets))
    assert plain.grad is not None
    torch.testing.assert_close(gradient.double(), plain.grad, rtol=1e-4, atol=1e-4)


def test_one_target_a_row_with_weight_one() -> None:
    """What plain fine-tuning asks for: the probabilities are the gradient but for the target."""
    head, hidden = _head(3.0)
    targets = Targets(torch.arange(ROWS), torch.randint(0, VOCABULARY, (ROWS,)))
    plain = hidden.double().requires_grad_(True)
    logprobs = torch.log_softmax(plain @ head.linear.weight_OD.double().T, -1)
    (-logprobs[targets.row_P, targets.token_P]).sum().backward()
    _, gradient = score_with_gradient(
        head,
        hidden,
        targets,
        torch.ones(ROWS, dtype=torch.bool),
        lambda _, lp: -torch.ones_like(lp),
    )
    assert plain.grad is not None
    torch.testing.assert_close(gradient.double(), plain.grad, rtol=1e-5, atol=1e-5)
