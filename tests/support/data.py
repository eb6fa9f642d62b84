"""Training examples and prompts, and what the loopback server makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.numbers import logprob
from tinkex import types

PROMPT = types.ModelInput.from_ints([1, 2, 3])
PARAMS = types.SamplingParams(max_tokens=4, seed=5)
CROSS_ENTROPY = "cross_entropy"


def make_datum(length: int, weight: float = 1.0) -> types.Datum:
    """An example whose targets are 1, 2, ..., `length`."""
    targets = list(range(1, length + 1))
    return types.Datum(
        model_input=types.ModelInput.from_ints(targets),
        loss_fn_inputs={"target_tokens": targets, "weights": [weight] * length},
    )


def make_data(lengths: Sequence[int]) -> list[types.Datum]:
    """One example of each length."""
    return [make_datum(length) for length in lengths]


def loss_of(lengths: Sequence[int], step: int = 0) -> float:
    """The cross-entropy the server reports for such examples after so many steps."""
    return -sum(logprob(token, step) for length in lengths for token in range(1, length + 1))
