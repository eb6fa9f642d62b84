"""A loss applied to a batch: each target's loss, its slope, and the loss's metrics.

Losses are sums over targets, never means: weights and advantages are used as sent. A loss function
that fails or returns something of the wrong shape ends its request, never the engine.

Shapes: P targets of the batch, all datums in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from tinkex.losses import Loss, LossBatch

__all__ = [
    "LossFunctionError",
    "counted_targets",
    "loss_and_slope",
    "loss_metrics",
    "may_have_slope",
]

_Result = TypeVar("_Result")


class LossFunctionError(RuntimeError):
    """A function of a loss raised an exception, or returned something it must not."""


def may_have_slope(loss: Loss, batch: LossBatch) -> Tensor:
    """Returns whether each target's logprob can affect the loss; known before the forward."""
    if loss.zero_where is None:
        return torch.ones_like(batch.sequence_P, dtype=torch.bool)
    return batch.arrays_P[loss.zero_where] != 0


def loss_and_slope(loss: Loss, lp_P: Tensor, batch: LossBatch) -> tuple[Tensor, Tensor]:
    """Returns each target's loss, and the derivative of their sum by each logprob.

    Raises:
        LossFunctionError: the loss's function failed.
    """
    if loss.slope_function is not None:
        loss_P = _called(loss, loss.function, lp_P, batch)
        slope_P = _called(loss, loss.slope_function, lp_P, batch)
        _check(loss, lp_P, loss_P, slope_P)
        return loss_P, slope_P
    with torch.enable_grad():
        lp_P = lp_P.detach().requires_grad_(True)
        loss_P = _called(loss, loss.function, lp_P, batch)
        _check(loss, lp_P, loss_P)
        if not loss_P.requires_grad:
            raise LossFunctionError(f"Loss {loss.name!r} does not depend on the logprobs.")
        (slope_P,) = torch.autograd.grad(loss_P.sum(), lp_P)
    return loss_P.detach(), slope_P


def loss_metrics(loss: Loss, lp_P: Tensor, batch: LossBatch) -> dict[str, Tensor]:
    """Returns one value per target for each metric that the loss declares.

    Raises:
        LossFunctionError: the metrics function failed, or returned other metrics.
    """
    if loss.metrics_function is None:
        return {}
    with torch.no_grad():
        values = dict(_called(loss, loss.metrics_function, lp_P, batch))
    declared = {metric.name for metric in loss.metrics}
    if values.keys() != declared:
        raise LossFunctionError(
            f"Loss {loss.name!r} declares the metrics {sorted(declared)} and returned "
            f"{sorted(values)}."
        )
    _check(loss, lp_P, *values.values())
    return values


def counted_targets(loss: Loss, lp_P: Tensor, batch: LossBatch) -> Tensor | None:
    """Returns which targets count in the metrics; None if all do.

    Raises:
        LossFunctionError: the loss's function failed.
    """
    function = loss.metric_targets
    if function is None or loss.metrics_function is None:
        return None
    counts_P = _called(loss, lambda _lp_P, given: function(given), lp_P, batch)
    _check(loss, lp_P, counts_P)
    return counts_P


def _called(
    loss: Loss, function: Callable[[Tensor, LossBatch], _Result], lp_P: Tensor, batch: LossBatch
) -> _Result:
    try:
        return function(lp_P, batch)
    except (RuntimeError, MemoryError):
        raise
    except Exception as error:
        raise LossFunctionError(
            f"Loss {loss.name!r} raised {type(error).__name__}: {error}"
        ) from error


def _check(loss: Loss, lp_P: Tensor, *results_P: object) -> None:
    for result_P in results_P:
        if not isinstance(result_P, Tensor) or result_P.shape != lp_P.shape:
            found = list(result_P.shape) if isinstance(result_P, Tensor) else type(result_P)
            raise LossFunctionError(
                f"Loss {loss.name!r} returned {found}, wanted a tensor of shape "
                f"{list(lp_P.shape)}: one value per target."
            )
