"""A built-in loss, computed in the client from the server's logprobs.

Shapes: P targets of the batch, all examples in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tinkex.errors import ValidationError
from tinkex.types.datum import Datum

if TYPE_CHECKING:
    from torch import Tensor

    from tinkex.losses import Loss, LossBatch, LossInput

    BaseLossFn = Callable[[list[Datum], list[Tensor]], tuple[Tensor, dict[str, float]]]

__all__ = ["built_in_loss"]


def built_in_loss(name: str, config: Mapping[str, float]) -> BaseLossFn:
    """The built-in loss of this name as a function of (data, logprobs).

    Raises:
        ValidationError: there is no such loss, or it has no such option.
    """
    from tinkex.losses import BUILT_IN

    if name not in BUILT_IN:
        raise ValidationError(
            f"There is no built-in loss {name!r}.",
            hint=f"Use one of {', '.join(BUILT_IN)}, or a function of (data, logprobs).",
        )
    loss = BUILT_IN[name]
    unknown = config.keys() - {each.name for each in loss.options}
    if unknown:
        raise ValidationError(f"The loss {name!r} has no option {', '.join(sorted(unknown))}.")

    def of_batch(data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        import torch

        lp_P = torch.cat([each.reshape(-1) for each in logprobs])
        batch = _batch(loss, config, data, logprobs)
        return loss.function(lp_P, batch).sum(), _metrics(loss, lp_P.detach(), batch)

    return of_batch


def _batch(
    loss: Loss, config: Mapping[str, float], data: list[Datum], logprobs: list[Tensor]
) -> LossBatch:
    import torch

    from tinkex.losses import LossBatch

    counts = torch.tensor([each.numel() for each in logprobs])
    arrays = {
        each.name: torch.cat(
            [
                _array(each, datum, lp, i)
                for i, (datum, lp) in enumerate(zip(data, logprobs, strict=True))
            ]
        )
        for each in loss.inputs
        if each.is_required or all(each.name in datum.loss_fn_inputs for datum in data)
    }
    sequence_P = torch.repeat_interleave(torch.arange(len(data)), counts)
    return LossBatch(arrays, sequence_P, len(data), loss.config_with(config))


def _array(declared: LossInput, datum: Datum, logprobs: Tensor, index: int) -> Tensor:
    given = datum.loss_fn_inputs.get(declared.name)
    if given is None:
        raise ValidationError(
            f"Example {index} has no loss_fn_inputs[{declared.name!r}], which the loss takes."
        )
    array: Tensor = given.to_torch().reshape(-1)
    wanted = 1 if declared.per == "datum" else logprobs.numel()
    if array.numel() != wanted:
        raise ValidationError(
            f"loss_fn_inputs[{declared.name!r}] of example {index} has {array.numel()} numbers; "
            f"wanted {wanted}."
        )
    return array.expand(logprobs.numel())


def _metrics(loss: Loss, lp_P: Tensor, batch: LossBatch) -> dict[str, float]:
    if loss.metrics_function is None:
        return {}
    return {
        name: float(getattr(value_P, name.rpartition(":")[2])())
        for name, value_P in loss.metrics_function(lp_P, batch).items()
    }
