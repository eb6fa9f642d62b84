"""An uploaded loss, run on one datum: its value, its derivative by the logprobs, its metrics.

Runs on the CPU, where clients run the same graph, so that both give the same numbers. Every
operation is bounded before it runs (`sizes`, `bounds`); what torch refuses becomes an error of the
request that names the node.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinkex.engine.custom_loss.arguments import ArgumentError, fill
from tinkex.engine.custom_loss.bounds import DatumBudget, WorkBudget
from tinkex.engine.custom_loss.checks import CheckedLoss, Step, checked_loss
from tinkex.engine.custom_loss.declaration import LOGPROBS
from tinkex.engine.custom_loss.sizes import MAX_RANK, size_of
from tinkex.engine.errors import EngineUserError

__all__ = ["DatumLoss", "LossProgram", "loss_program"]

_Array = npt.NDArray[np.generic]

_MAX_INT = 2**63
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class DatumLoss:
    """The loss of one datum; `slope` is its derivative by each logprob."""

    loss: float
    slope: Tensor
    metrics: dict[str, float]


@lru_cache(maxsize=64)
def loss_program(data: bytes) -> LossProgram:
    """The loss of these bytes, checked and ready to run.

    Raises:
        EngineUserError: a node or argument is not allowed.
    """
    return LossProgram(checked_loss(data))


class LossProgram:
    """A checked loss with its functions resolved. Stateless and thread-safe."""

    def __init__(self, loss: CheckedLoss) -> None:
        self._loss = loss
        self._steps = [(step, _function(step)) for step in loss.steps]

    @property
    def input_names(self) -> list[str]:
        """The names of the arrays that a datum must have."""
        return [each.name for each in self._loss.inputs if each.name != LOGPROBS]

    def run(self, logprobs: Tensor, inputs: Mapping[str, _Array], budget: WorkBudget) -> DatumLoss:
        """The loss of one datum, given the logprobs of its targets in their shape.

        Raises:
            EngineUserError: it fails on these values, or exceeds a bound.
        """
        with torch.enable_grad():
            leaf = logprobs.detach().to("cpu", copy=True).requires_grad_(True)
            values = self._run_steps(leaf, inputs, DatumBudget(budget))
            loss = _scalar("The loss", values[self._loss.loss.name])
            if not loss.requires_grad:
                raise _failed("Its loss does not depend on the logprobs, so it has no gradient.")
            slope = _slope(loss, leaf)
        metrics = {
            name: float(_scalar(name, values[ref.name]).detach())
            for name, ref in self._loss.metrics.items()
        }
        return DatumLoss(float(loss.detach()), slope, metrics)

    def _run_steps(
        self, leaf: Tensor, inputs: Mapping[str, _Array], budget: DatumBudget
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, each in zip(self._loss.placeholders, self._loss.inputs, strict=True):
            if each.name == LOGPROBS:
                values[name] = leaf
                continue
            array = np.array(inputs[each.name])  # a copy: an array of a request may be read-only
            values[name] = torch.from_numpy(array if each.rank else array.reshape(()))
        for step, function in self._steps:
            values[step.name] = _call(step, function, values, budget)
        return values


def _function(step: Step) -> Callable[..., Any]:
    path = step.operation.path
    if step.is_method:
        return cast("Callable[..., Any]", getattr(Tensor, path))
    module, _, name = path.rpartition(".")
    return cast("Callable[..., Any]", getattr(importlib.import_module(module), name))


def _call(
    step: Step, function: Callable[..., Any], values: Mapping[str, Any], budget: DatumBudget
) -> Any:
    where = f"{step.name} ({step.target})"
    try:
        args = fill(step.args, values, _constant)
        kwargs = fill(step.kwargs, values, _constant)
        if step.is_method and not isinstance(args[0], Tensor):
            raise ArgumentError("is a method of something other than a tensor")
        budget.take(*size_of(step.operation.size, args, kwargs), where)
        result = function(*args, **kwargs)
        _check_result(result)
    except (EngineUserError, MemoryError):
        raise
    except ArgumentError as error:
        raise _failed(f"{where} {error}.") from error
    except Exception as error:  # torch raises many kinds; all are about these arguments
        _fail(where, error)
    return result


def _check_result(result: object) -> None:
    match result:
        case Tensor():
            if result.dim() > MAX_RANK:
                raise ArgumentError(f"gives a tensor of more than {MAX_RANK} dimensions")
            if result.is_complex():
                raise ArgumentError("gives complex numbers")
        case int() if not -_MAX_INT <= result < _MAX_INT:
            raise ArgumentError("gives a whole number of more than 64 bits")
        case bool() | int() | float() | tuple() | torch.dtype() | torch.device():
            pass
        case _:
            raise ArgumentError(f"gives a {type(result).__name__}")


def _slope(loss: Tensor, leaf: Tensor) -> Tensor:
    try:
        (slope,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    except RuntimeError as error:
        _fail("The backward of the loss", error)
    if slope is None:
        raise _failed("Its loss does not depend on the logprobs, so it has no gradient.")
    return slope


def _scalar(what: str, value: object) -> Tensor:
    tensor = value if isinstance(value, Tensor) else None
    if isinstance(value, int | float):
        tensor = torch.tensor(value, dtype=torch.float64)
    if tensor is None or tensor.dim():
        found = type(value).__name__ if tensor is None else f"of shape {list(tensor.shape)}"
        raise _failed(f"{what} must be a scalar; it is {found}.")
    return tensor


def _constant(name: str) -> object:
    return getattr(torch, name)


def _fail(where: str, error: Exception) -> NoReturn:
    text = (str(error).splitlines() or [""])[0][:_SHOWN]
    raise _failed(f"{where}: {type(error).__name__}: {text}") from error


def _failed(message: str) -> EngineUserError:
    return EngineUserError(
        f"The custom loss failed. {message}", code="custom-loss-failed", field="loss_fn"
    )
