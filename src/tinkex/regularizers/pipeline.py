"""RegularizedLoss: a loss with weighted penalties, all computed side by side.

Each regularizer runs in a thread of its own, or on one event loop if it is a coroutine. What each
adds to the loss and to its gradient is measured apart from the others and put into the metrics.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinkex import telemetry
from tinkex.errors import ValidationError
from tinkex.regularizers.base_loss import built_in_loss
from tinkex.regularizers.interface import Regularizer, RegularizerBatch
from tinkex.telemetry import events
from tinkex.types.datum import Datum

if TYPE_CHECKING:
    from torch import Tensor

    from tinkex.regularizers.base_loss import BaseLossFn

__all__ = ["TOTAL", "RegularizedLoss"]

TOTAL = "regularizer/total"
"""The metric with the sum of all contributions."""


@dataclass(frozen=True, slots=True)
class _Computed:
    name: str
    contribution: Tensor
    value: float
    grad_norm: float

    def metrics(self) -> dict[str, float]:
        found = {
            "value": self.value,
            "contribution": float(self.contribution.detach()),
            "grad_norm": self.grad_norm,
        }
        return {f"regularizer/{self.name}/{key}": number for key, number in found.items()}


class RegularizedLoss:
    """A loss and its penalties, for `TrainingClient.forward_backward_custom`.

    `loss` is a function of (data, logprobs) as any custom loss, or the name of a built-in loss,
    whose options are in `config`.

    ```python
    loss = RegularizedLoss("cross_entropy", [L2(weight=0.01), Entropy(weight=0.001)])
    metrics = training.forward_backward_custom(batch, loss).result().metrics
    print(metrics["base_loss"], metrics["regularizer/l2/contribution"], metrics["loss:sum"])
    ```

    Raises:
        ValidationError: there is no such loss, something in the list is no regularizer, or two
            have the same name.
    """

    def __init__(
        self,
        loss: BaseLossFn | str,
        regularizers: Sequence[Regularizer],
        *,
        config: Mapping[str, float] | None = None,
    ) -> None:
        self.regularizers = tuple(regularizers)
        _check(self.regularizers)
        if not isinstance(loss, str):
            if not callable(loss) or config:
                raise ValidationError(
                    "The loss must be a function of (data, logprobs), or the name of a built-in "
                    "loss; only the latter takes a config."
                )
            self._loss: BaseLossFn = loss
        else:
            self._loss = built_in_loss(loss, config or {})
        self._described = loss if isinstance(loss, str) else getattr(loss, "__name__", "loss")

    def __repr__(self) -> str:
        penalties = ", ".join(f"{each.weight:g} * {each.name}" for each in self.regularizers)
        return f"<RegularizedLoss {self._described} + [{penalties}]>"

    def __call__(
        self, data: list[Datum], logprobs: list[Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss with all contributions, and the metrics of each.

        Raises:
            ValidationError: a regularizer gave no scalar, or one that is not finite.
        """
        loss, metrics = self._base(data, logprobs)
        batch = RegularizerBatch(data, logprobs, loss)
        computed = _side_by_side(self.regularizers, batch)
        for each in computed:
            loss = loss + each.contribution
        return loss, {**(metrics or {}), **_metrics(batch, computed)}

    def _base(self, data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        result: Any = self._loss(data, logprobs)
        if not isinstance(result, tuple) or len(result) != 2 or not hasattr(result[0], "backward"):
            raise ValidationError(
                f"{self._described} must return (loss, metrics), the loss as a tensor."
            )
        return result


def _metrics(batch: RegularizerBatch, computed: Sequence[_Computed]) -> dict[str, float]:
    found = {
        "base_loss": float(batch.loss.detach()),
        TOTAL: sum(float(each.contribution.detach()) for each in computed),
    }
    for each in computed:
        found.update(each.metrics())
    return found


def _check(regularizers: Sequence[Any]) -> None:
    for each in regularizers:
        if not isinstance(each, Regularizer):
            raise ValidationError(
                f"{each!r} is no regularizer.",
                hint="Wrap a function of your own in Own(fn=..., weight=...).",
            )
    names = [each.name for each in regularizers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValidationError(
            f"Two regularizers are called {twice[0]!r}.",
            hint="Give one of them another name=, which its metrics then have.",
        )


def _side_by_side(regularizers: Sequence[Regularizer], batch: RegularizerBatch) -> list[_Computed]:
    """Runs all on an event loop in a thread: the caller's thread may have a running loop."""
    if not regularizers:
        return []
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="tinkex-regularizers") as thread:
        return thread.submit(context.run, asyncio.run, _all(regularizers, batch)).result()


async def _all(regularizers: Sequence[Regularizer], batch: RegularizerBatch) -> list[_Computed]:
    results = await asyncio.gather(
        *(_observed(each, batch) for each in regularizers), return_exceptions=True
    )
    computed = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        computed.append(result)
    return computed


async def _observed(regularizer: Regularizer, batch: RegularizerBatch) -> _Computed:
    about = {"regularizer_name": regularizer.name, "weight": regularizer.weight}
    telemetry.execute(events.REGULARIZER_COMPUTE_START, {"system_time": time.time()}, about)
    started = time.perf_counter()
    try:
        computed = await _compute(regularizer, batch)
    except Exception as error:
        elapsed = {"duration": time.perf_counter() - started}
        why = {**about, "error": str(error)}
        telemetry.execute(events.REGULARIZER_COMPUTE_EXCEPTION, elapsed, why)
        raise
    measured = {
        "duration": time.perf_counter() - started,
        "value": computed.value,
        "contribution": float(computed.contribution.detach()),
        "grad_norm": computed.grad_norm,
    }
    telemetry.execute(events.REGULARIZER_COMPUTE_STOP, measured, about)
    return computed


async def _compute(regularizer: Regularizer, batch: RegularizerBatch) -> _Computed:
    result: Any = await asyncio.to_thread(regularizer.penalty, batch)
    value = await result if inspect.isawaitable(result) else result
    return await asyncio.to_thread(_measured, regularizer, value, batch)


def _measured(regularizer: Regularizer, value: Any, batch: RegularizerBatch) -> _Computed:
    if not hasattr(value, "detach") or value.numel() != 1:
        raise ValidationError(
            f"The regularizer {regularizer.name!r} must give a scalar tensor, not "
            f"{type(value).__name__}."
        )
    contribution: Tensor = regularizer.weight * value.reshape(())
    number = float(value.detach())
    grad_norm = _grad_norm(contribution, batch.logprobs)
    if not (math.isfinite(number) and math.isfinite(grad_norm)):
        raise ValidationError(
            f"The regularizer {regularizer.name!r} gave {number} with a gradient norm of "
            f"{grad_norm}.",
            hint="Nothing was trained; look for logprobs or references that are not finite.",
        )
    return _Computed(regularizer.name, contribution, number, grad_norm)


def _grad_norm(contribution: Tensor, logprobs: Sequence[Tensor]) -> float:
    """The norm of the contribution's gradient by all logprobs."""
    import torch

    if not contribution.requires_grad:
        return 0.0
    slopes = torch.autograd.grad(contribution, list(logprobs), retain_graph=True, allow_unused=True)
    parts = [each.reshape(-1) for each in slopes if each is not None]
    return float(torch.linalg.vector_norm(torch.cat(parts))) if parts else 0.0
