"""Entropy and KL of sampled targets: their expectation over all tokens is the exact gradient.

The oracle is a model of one position with 6 tokens and free logits. Each token is taken as the
sampled target, and its value and gradient by the logits are weighted with its probability.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.regularizers.batches import datum_of
from tinkex.regularizers import KL, Entropy, Regularizer, RegularizerBatch

RANDOM = np.random.default_rng(11)
LOGITS = RANDOM.normal(size=6)
OTHER = torch.log_softmax(torch.tensor(RANDOM.normal(size=6)), dim=0)


def exact(name: str, logits: Tensor) -> Tensor:
    model = logits.log_softmax(dim=0)
    forward = (OTHER.exp() * (OTHER - model)).sum()
    reverse = (model.exp() * (model - OTHER)).sum()
    return {
        "entropy": -(model.exp() * model).sum(),
        "forward": forward,
        "reverse": reverse,
        "symmetric": (forward + reverse) / 2,
    }[name]


def sampled(regularizer: Regularizer, token: int, logits: Tensor) -> Tensor:
    logprobs = [logits.log_softmax(dim=0)[token].reshape(1)]
    data = [datum_of([1])]
    penalty = regularizer.penalty(RegularizerBatch(data, logprobs, logprobs[0].sum()))
    assert isinstance(penalty, Tensor)
    return penalty


@pytest.mark.parametrize("name", ["entropy", "forward", "reverse", "symmetric"])
def test_the_expectation_over_sampled_tokens_is_exact(name: str) -> None:
    logits = torch.tensor(LOGITS, requires_grad=True)
    shares = torch.softmax(logits.detach(), dim=0)
    value, slope = 0.0, torch.zeros(6, dtype=torch.float64)
    for token in range(6):
        regularizer = (
            Entropy(weight=1.0, maximize=False)
            if name == "entropy"
            else KL(weight=1.0, direction=name, reference=lambda _, t=token: [OTHER[t : t + 1]])
        )
        penalty = sampled(regularizer, token, logits)
        (found,) = torch.autograd.grad(penalty, logits)
        value += float(shares[token] * penalty.detach())
        slope += shares[token] * found
    wanted = exact(name, logits)
    (wanted_slope,) = torch.autograd.grad(wanted, logits)
    assert value == pytest.approx(float(wanted.detach()), rel=1e-9)
    np.testing.assert_allclose(slope.numpy(), wanted_slope.numpy(), atol=1e-12)
    assert float(torch.linalg.vector_norm(wanted_slope)) > 1e-2


def test_kl_estimates_are_never_negative() -> None:
    for direction in ("forward", "reverse", "symmetric"):
        for distance in (-5.0, -0.1, 0.0, 0.1, 5.0):
            logprobs = [torch.tensor([-6.0], requires_grad=True)]
            regularizer = KL(
                weight=1.0,
                direction=direction,
                reference=lambda _, d=distance: [torch.tensor([-6.0 + d])],
            )
            batch = RegularizerBatch([datum_of([1])], logprobs, logprobs[0].sum())
            assert float(regularizer.penalty(batch).detach()) >= 0
