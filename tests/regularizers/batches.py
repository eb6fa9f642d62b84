"""Batches whose logprobs are known, and the losses and slopes of a regularizer on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinkex.regularizers import RegularizedLoss, Regularizer
from tinkex.types import Datum, ModelInput, TensorData

Rows = list[np.ndarray[Any, Any]]


def datum_of(shape: Sequence[int], **inputs: Any) -> Datum:
    """An example with targets of this shape and these inputs."""
    targets = TensorData.from_numpy(np.arange(np.prod(shape)).reshape(shape))
    tensors = {name: tensor_of(value) for name, value in inputs.items()}
    tokens = ModelInput.from_ints(list(range(1, shape[0] + 1)))
    return Datum(tokens, {"target_tokens": targets, **tensors})


def tensor_of(value: Any) -> TensorData:
    return TensorData.from_numpy(np.asarray(value, dtype=np.float32))


def squares(_data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
    """A base loss that is not linear, so that a gradient penalty has a gradient."""
    return torch.stack([(each**2).sum() for each in logprobs]).sum(), {}


def nothing(_data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
    """A base loss of 0, so that what is left is the penalty."""
    return torch.stack([(each * 0).sum() for each in logprobs]).sum(), {}


def run(
    regularizers: Sequence[Regularizer],
    data: list[Datum],
    rows: Rows,
    base: Callable[..., Any] = nothing,
) -> tuple[float, Rows, dict[str, float]]:
    """The loss, its slopes by the logprobs, and the metrics."""
    leaves = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in rows]
    loss, metrics = RegularizedLoss(base, regularizers)(data, leaves)
    slopes = torch.autograd.grad(loss, leaves, allow_unused=True)
    found = [
        np.zeros(row.shape) if slope is None else slope.numpy()
        for row, slope in zip(rows, slopes, strict=True)
    ]
    return float(loss.detach()), found, metrics


def finite_differences(value: Callable[[Rows], float], rows: Rows, step: float = 1e-5) -> Rows:
    """The slopes of a function of the rows by central differences."""
    slopes = [np.zeros_like(row) for row in rows]
    for row, slope in zip(rows, slopes, strict=True):
        for place in np.ndindex(row.shape):
            before = row[place]
            row[place] = before + step
            above = value(rows)
            row[place] = before - step
            slope[place] = (above - value(rows)) / (2 * step)
            row[place] = before
    return slopes
