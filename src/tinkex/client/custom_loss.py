"""Losses of the user's own, computed here from the server's logprobs.

The server's cross entropy is the sum of -weight * logprob, so with weights -dC/dlogprob its
gradient is exactly that of any loss C of the logprobs. torch is imported only when such a loss is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tinkex import telemetry
from tinkex.client.clock import Clock
from tinkex.errors import APIResponseValidationError, ValidationError
from tinkex.telemetry import events
from tinkex.types.datum import Datum
from tinkex.types.tensor import TensorData
from tinkex.types.training import ForwardBackwardOutput

if TYPE_CHECKING:
    import torch

    CustomLossFn = Callable[
        [list[Datum], list[torch.Tensor]], tuple[torch.Tensor, dict[str, float]]
    ]


class Surrogate(msgspec.Struct, frozen=True):
    """A batch whose cross entropy has the custom loss's gradient, and what the loss itself was."""

    data: list[Datum]
    loss: float
    metrics: dict[str, float]


def scoring_batch(data: Sequence[Datum]) -> list[Datum]:
    """The batch reduced to what the server needs to compute logprobs."""
    return [Datum(datum.model_input, _scoring_inputs(datum)) for datum in data]


def _scoring_inputs(datum: Datum) -> dict[str, TensorData]:
    targets = datum.loss_fn_inputs.get("target_tokens")
    if targets is None:
        raise ValidationError("Every Datum of a custom loss needs target_tokens.")
    weights = datum.loss_fn_inputs.get("weights")
    if weights is None:
        dense = targets.to_dense()
        zeros = bytes(4 * dense.num_values)
        weights = TensorData.from_bytes(zeros, "float32", dense.shape or [dense.num_values])
    return {"target_tokens": targets, "weights": weights}


def surrogate(
    data: Sequence[Datum],
    scored: Sequence[Datum],
    output: ForwardBackwardOutput,
    loss_fn: CustomLossFn,
    clock: Clock,
) -> Surrogate:
    """Calls the loss, differentiates it, and writes the gradient into weights.

    Raises:
        ValidationError: the loss does not return (scalar tensor, metrics) that depend on logprobs.
    """
    started = clock.monotonic()
    about = {"num_examples": len(data), "regularizer_count": _count(loss_fn)}
    telemetry.execute(events.CUSTOM_LOSS_START, {"system_time": clock.time()}, about)
    try:
        made = _surrogate(data, scored, output, loss_fn)
    except Exception as error:
        measured = {"duration": clock.monotonic() - started}
        why = {"kind": type(error).__name__, "error": str(error)}
        telemetry.execute(events.CUSTOM_LOSS_EXCEPTION, measured, {**about, **why})
        raise
    measured = {
        "duration": clock.monotonic() - started,
        "loss_total": made.loss,
        "regularizer_total": made.metrics.get("regularizer/total", 0.0),
    }
    telemetry.execute(events.CUSTOM_LOSS_STOP, measured, about)
    return made


def _count(loss_fn: CustomLossFn) -> int:
    from tinkex.regularizers.pipeline import RegularizedLoss  # not at import: few losses are one

    return len(loss_fn.regularizers) if isinstance(loss_fn, RegularizedLoss) else 0


def _surrogate(
    data: Sequence[Datum],
    scored: Sequence[Datum],
    output: ForwardBackwardOutput,
    loss_fn: CustomLossFn,
) -> Surrogate:
    logprobs = [_leaf(row["logprobs"]) for row in output.loss_fn_outputs]
    if len(logprobs) != len(data):
        raise APIResponseValidationError(
            f"The server scored {len(logprobs)} of {len(data)} examples."
        )
    loss, metrics = _call(loss_fn, list(data), logprobs)
    loss.backward()  # type: ignore[no-untyped-call]
    weighted = [
        Datum(
            datum.model_input,
            {**datum.loss_fn_inputs, "weights": _negated_gradient(leaf)},
        )
        for datum, leaf in zip(scored, logprobs, strict=True)
    ]
    return Surrogate(weighted, float(loss.detach()), metrics)


def _leaf(logprobs: TensorData) -> torch.Tensor:
    return logprobs.to_torch().requires_grad_(True)


def _call(
    loss_fn: CustomLossFn, data: list[Datum], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    result: Any = loss_fn(data, logprobs)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ValidationError("A custom loss returns (loss, metrics).")
    loss, metrics = result
    if not hasattr(loss, "backward") or loss.numel() != 1:
        raise ValidationError("A custom loss returns a scalar tensor as its first value.")
    if not loss.requires_grad:
        raise ValidationError(
            "The custom loss does not depend on the logprobs, so it has no gradient."
        )
    return loss, {name: _number(value) for name, value in (metrics or {}).items()}


def _number(metric: Any) -> float:
    """A metric, number or tensor; torch warns where a tensor with a gradient becomes a number."""
    return float(metric.detach() if hasattr(metric, "detach") else metric)


def _negated_gradient(leaf: torch.Tensor) -> TensorData:
    import torch

    gradient = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
    return TensorData.from_torch(-gradient)


def relabel(output: ForwardBackwardOutput, made: Surrogate) -> ForwardBackwardOutput:
    """The server's answer with the custom loss as `loss:sum` and the server's own beside it.

    Raises:
        APIResponseValidationError: the server reported no `loss:sum`.
    """
    metrics = dict(output.metrics)
    if "loss:sum" not in metrics:
        raise APIResponseValidationError("The server reported no loss:sum.")
    metrics["surrogate_loss:sum"] = metrics.pop("loss:sum")
    return ForwardBackwardOutput(
        loss_fn_output_type=output.loss_fn_output_type,
        loss_fn_outputs=output.loss_fn_outputs,
        metrics={**metrics, **made.metrics, "loss:sum": made.loss},
    )
