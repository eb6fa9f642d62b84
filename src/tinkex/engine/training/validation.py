"""Checks of one training request against its model and what its loss declares.

Pure, without torch. Every refusal follows from the loss's declaration: what is missing, which value
it was, what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tinkex.engine.custom_loss.checks import checked_loss
from tinkex.engine.custom_loss.declaration import LOGPROBS
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import ModelInfo, TrainDatum, TrainRequest
from tinkex.engine.validation import check_tokens, check_vocabulary
from tinkex.losses import BUILT_IN, TARGETS, Loss, LossInput
from tinkex.losses.declaration import range_text

__all__ = ["check_train"]

_Array = npt.NDArray[np.generic]


def check_train(
    request: TrainRequest, model: ModelInfo, losses: Mapping[str, Loss] = BUILT_IN
) -> None:
    """Returns if the request can be computed on this model with one of these losses.

    Raises:
        EngineUserError: with the field that has to change.
    """
    if request.custom_loss:
        _check_uploaded(request, model)
        return
    loss = losses.get(request.loss_fn)
    if loss is None:
        raise EngineUserError(
            f"loss_fn={request.loss_fn!r} is not known here. Use one of: {', '.join(losses)}.",
            code="unknown-loss",
            field="loss_fn",
            value=request.loss_fn,
        )
    _check_config(request, loss)
    _check_data(request)
    for index, datum in enumerate(request.data):
        _check_datum(datum, loss, model, f"data[{index}]")


def _check_data(request: TrainRequest) -> None:
    if not request.data:
        raise EngineUserError(
            "data is empty. Send at least one datum.", code="empty-data", field="data", value="[]"
        )


def _check_uploaded(request: TrainRequest, model: ModelInfo) -> None:
    """A loss that a client uploaded: each of its inputs is there, in its rank."""
    inputs = checked_loss(request.custom_loss).inputs
    _check_data(request)
    for index, datum in enumerate(request.data):
        where = f"data[{index}]"
        check_tokens(datum.tokens, model, f"{where}.tokens")
        for each in inputs:
            # The logprobs themselves come from the model, one for each target.
            name = TARGETS if each.name == LOGPROBS else each.name
            array = datum.inputs.get(name)
            if array is None or not _has_rank(array, each.rank):
                found = "is missing" if array is None else f"has the shape {list(array.shape)}"
                raise EngineUserError(
                    f"{where}.inputs.{name} {found}; the custom loss was created for an input of "
                    f"rank {each.rank}. Send it in that rank, or create the loss anew.",
                    code="wrong-loss-input",
                    field=f"{where}.inputs.{name}",
                )
        _check_targets(
            datum.inputs[TARGETS], datum.tokens.size, takes_top_k=True, model=model, where=where
        )


def _has_rank(array: _Array, rank: int) -> bool:
    # The wire does not distinguish a scalar from a list of one number.
    return array.size == 1 and array.ndim <= 1 if rank == 0 else array.ndim == rank


def _check_config(request: TrainRequest, loss: Loss) -> None:
    options = {each.name: each for each in loss.options}
    for name, value in request.loss_config.items():
        field = f"loss_config.{name}"
        if name not in options:
            known = ", ".join(sorted(options)) or "none"
            raise EngineUserError(
                f"loss_fn {loss.name!r} has no config key {name!r}. Known keys: {known}.",
                code="unknown-loss-config",
                field=field,
                value=value,
            )
        low, high = options[name].low, options[name].high
        is_number = not isinstance(value, str) and math.isfinite(value)
        if not is_number or not low <= float(value) <= high:
            raise EngineUserError(
                f"{field}={value!r} must be {range_text(low, high)}.",
                code="bad-loss-config",
                field=field,
                value=value,
            )
    config = loss.config_with(request.loss_config)
    for option in loss.options:
        if option.at_most is not None and config[option.name] > config[option.at_most]:
            raise EngineUserError(
                f"{option.name}={config[option.name]} is above {option.at_most}="
                f"{config[option.at_most]}. {option.about} Swap or correct them.",
                code="bad-loss-config",
                field=f"loss_config.{option.name}",
                value=config[option.name],
            )


def _check_datum(datum: TrainDatum, loss: Loss, model: ModelInfo, where: str) -> None:
    check_tokens(datum.tokens, model, f"{where}.tokens")
    _check_names(datum, loss, where)
    targets = datum.inputs[TARGETS]
    _check_targets(
        targets, datum.tokens.size, takes_top_k=loss.takes_top_k, model=model, where=where
    )
    for name in sorted(datum.inputs.keys() - {TARGETS}):
        _check_input(datum.inputs[name], loss.input(name), targets.shape, f"{where}.inputs.{name}")


def _check_names(datum: TrainDatum, loss: Loss, where: str) -> None:
    unknown = sorted(datum.inputs.keys() - loss.required - loss.optional)
    if unknown:
        raise EngineUserError(
            f"{where} has the loss input {unknown[0]!r}, which {loss.name!r} does not take. "
            f"It takes: {', '.join(sorted(loss.required | loss.optional))}. Remove the rest.",
            code="unknown-loss-input",
            field=f"{where}.inputs.{unknown[0]}",
            value=unknown[0],
        )
    missing = sorted(loss.required - datum.inputs.keys())
    if missing:
        raise EngineUserError(
            f"{where} lacks the loss input {missing[0]!r}, which {loss.name!r} needs. "
            f"It needs: {', '.join(sorted(loss.required))}.",
            code="missing-loss-input",
            field=f"{where}.inputs.{missing[0]}",
        )


def _check_targets(
    targets: _Array, num_tokens: int, *, takes_top_k: bool, model: ModelInfo, where: str
) -> None:
    field = f"{where}.inputs.{TARGETS}"
    if not np.issubdtype(targets.dtype, np.integer):
        raise EngineUserError(
            f"{field} must be integers, got {targets.dtype}.",
            code="bad-loss-input",
            field=field,
            value=targets.dtype,
        )
    is_shaped = targets.ndim == 1 or (takes_top_k and targets.ndim == 2 and targets.shape[1] > 0)
    if not is_shaped or targets.shape[0] != num_tokens:
        wanted = f"[{num_tokens}]" + (f" or [{num_tokens}, K]" if takes_top_k else "")
        raise EngineUserError(
            f"{field} has shape {list(targets.shape)}, wanted {wanted}: one row for each of the "
            f"{num_tokens} tokens (position i predicts row i; shift by one before sending).",
            code="wrong-length",
            field=field,
            value=list(targets.shape),
        )
    check_vocabulary(targets, model, field)


def _check_input(array: _Array, spec: LossInput, targets: tuple[int, ...], field: str) -> None:
    _check_shape(array, spec, targets, field)
    if not np.issubdtype(array.dtype, np.number) or not np.isfinite(array).all():
        bad = array[~np.isfinite(array)] if np.issubdtype(array.dtype, np.number) else array
        raise EngineUserError(
            f"{field} holds {bad.flat[0]!s}. Only finite numbers can be trained on; mask or mend "
            "the value before sending.",
            code="not-finite",
            field=field,
            value=str(bad.flat[0]),
        )
    if spec.dtype == "int64" and not np.issubdtype(array.dtype, np.integer):
        raise EngineUserError(
            f"{field} must be integers, got {array.dtype}.",
            code="bad-loss-input",
            field=field,
            value=array.dtype,
        )
    if math.isinf(spec.low) and math.isinf(spec.high):
        return
    numbers = array.astype(np.float64)
    is_outside = (numbers < spec.low) | (numbers > spec.high)
    if is_outside.any():
        where = [int(i) for i in np.argwhere(is_outside)[0]]
        value = array[is_outside][0]
        raise EngineUserError(
            f"{field}{where}={value!s} must be {range_text(spec.low, spec.high)}.",
            code="bad-loss-input",
            field=field,
            value=str(value),
        )


def _check_shape(array: _Array, spec: LossInput, targets: tuple[int, ...], field: str) -> None:
    if spec.per == "datum" and array.size != 1:
        raise EngineUserError(
            f"{field} has shape {list(array.shape)}, wanted [1]. Give one number per datum.",
            code="wrong-length",
            field=field,
            value=list(array.shape),
        )
    if spec.per == "target" and array.shape != targets:
        raise EngineUserError(
            f"{field} has shape {list(array.shape)}, but {TARGETS} has {list(targets)}. "
            "Give one number per target.",
            code="wrong-length",
            field=field,
            value=list(array.shape),
        )
