"""Tracing a per-example loss into a graph that a server can run.

`torch.fx` runs the function once on stand-ins and records what it does with them. What it records
must be expressible in torch, math and Python operators alone; everything else is refused here, with
the name of the function and the reason, before anything is sent. torch is imported when a loss is
traced, not before.
"""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tinkex.errors import ValidationError
from tinkex.types.custom_loss import (
    CustomLossGraph,
    CustomLossInput,
    CustomLossInputRank,
    CustomLossNode,
)

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    PerDatumLossFn = Callable[..., tuple[torch.Tensor, Mapping[str, torch.Tensor]]]
else:
    PerDatumLossFn = Callable[..., tuple[Any, Mapping[str, Any]]]

MAX_INPUTS = 16
MAX_INT = 2**63
FIRST_INPUT = "logprobs"
_INPUT_NAME = re.compile(r"[a-z0-9_]{1,64}")
_METRIC_NAME = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")
_OPS = ("placeholder", "call_function", "call_method", "output")
_HOMES = ("torch.", "math.", "operator.")
_RULES = (
    "A custom loss uses torch, math and Python operators only, and does not branch on the values "
    "of tensors."
)


class TracedLoss(msgspec.Struct, frozen=True):
    """A traced loss: its name, inputs and graph."""

    name: str
    inputs: tuple[CustomLossInput, ...]
    module: Any
    """The traced function, a `torch.fx.GraphModule`."""
    graph: CustomLossGraph

    @property
    def key(self) -> str:
        """Equal for losses with equal inputs and graphs, whatever their names."""
        return loss_key(self.inputs, self.graph)


def loss_key(inputs: tuple[CustomLossInput, ...], graph: CustomLossGraph) -> str:
    """A digest of a loss's inputs and graph."""
    return hashlib.sha256(msgspec.json.encode((inputs, graph))).hexdigest()


def trace(fn: PerDatumLossFn, input_ranks: Mapping[str, CustomLossInputRank]) -> TracedLoss:
    """The loss as a graph.

    Raises:
        ValidationError: the function cannot be traced, or breaks a rule of custom losses.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    inputs = _inputs(name, _parameters(name, fn), input_ranks)
    torch = _torch()
    try:
        module = torch.fx.symbolic_trace(fn)
    except Exception as error:
        # The function is the user's: whatever it raises means that it cannot be traced.
        raise ValidationError(
            f"The custom loss {name} cannot be traced: {str(error) or type(error).__name__}",
            hint=_RULES,
        ) from error
    return TracedLoss(name, inputs, module, encode_graph(name, module.graph))


def _torch() -> ModuleType:
    try:
        import torch
        import torch.fx
    except ImportError as error:
        raise ValidationError(
            "Custom losses need torch, which is not installed.",
            hint="pip install torch numpy",
        ) from error
    return torch


def _parameters(name: str, fn: PerDatumLossFn) -> list[str]:
    if not callable(fn):
        raise ValidationError(f"A custom loss is a function, not a {type(fn).__name__}.")
    parameters = list(inspect.signature(fn).parameters.values())
    if not parameters or parameters[0].name != FIRST_INPUT:
        raise ValidationError(
            f"The custom loss {name} must take logprobs first, then the loss_fn_inputs it reads.",
            hint="Write it as: def loss(logprobs, advantages): ...",
        )
    if len(parameters) > MAX_INPUTS:
        raise ValidationError(
            f"The custom loss {name} takes {len(parameters)} tensors; {MAX_INPUTS} is the limit."
        )
    for parameter in parameters:
        _check_parameter(name, parameter)
    return [parameter.name for parameter in parameters]


def _check_parameter(name: str, parameter: inspect.Parameter) -> None:
    where = f"The parameter {parameter.name!r} of the custom loss {name}"
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise ValidationError(f"{where} must be a plain positional one.")
    if parameter.default is not parameter.empty:
        raise ValidationError(f"{where} must have no default: every example has to give it.")
    if not _INPUT_NAME.fullmatch(parameter.name):
        raise ValidationError(f"{where} must be written in lower-case letters, digits and _.")


def _inputs(
    name: str, parameters: list[str], ranks: Mapping[str, CustomLossInputRank]
) -> tuple[CustomLossInput, ...]:
    if set(ranks) != set(parameters):
        raise ValidationError(
            f"input_ranks must give a rank for each of {', '.join(parameters)}, the parameters of "
            f"{name}; it has {', '.join(ranks) or 'none'}."
        )
    for parameter in parameters:
        rank, lowest = ranks[parameter], 1 if parameter == FIRST_INPUT else 0
        if isinstance(rank, bool) or rank not in range(lowest, 3):
            raise ValidationError(
                f"input_ranks[{parameter!r}] must be {lowest} to 2, not {rank!r}.",
                hint="0 is a scalar, 1 has a value per token, 2 a row of values per token.",
            )
    return tuple(CustomLossInput(name=parameter, rank=ranks[parameter]) for parameter in parameters)


def encode_graph(name: str, graph: Any) -> CustomLossGraph:
    """A traced graph in its wire form.

    Raises:
        ValidationError: it holds something a server could not run.
    """
    nodes = [_encode_node(name, node) for node in graph.nodes]
    _check_output(name, next(node for node in graph.nodes if node.op == "output").args[0])
    return CustomLossGraph(nodes=nodes)


def _encode_node(name: str, node: Any) -> CustomLossNode:
    if node.op not in _OPS:
        raise ValidationError(
            f"The custom loss {name} uses a tensor from outside ({node.target!r}).",
            hint="It may read logprobs and the loss_fn_inputs it names as parameters.",
        )
    target = _function_name(name, node.target) if node.op == "call_function" else node.target
    return CustomLossNode(
        op=node.op,
        name=node.name,
        target=target,
        args=[_encode(name, value) for value in node.args],
        kwargs={key: _encode(name, value) for key, value in node.kwargs.items()},
    )


def _function_name(name: str, function: Any) -> str:
    """`torch.exp`, `math.exp`, `operator.mul`, `getattr`: a function as the wire calls it."""
    from torch.fx.node import _get_qualified_name

    full = _get_qualified_name(function).removeprefix("_")
    if full == "getattr" or full.startswith(_HOMES):
        return full
    raise ValidationError(f"The custom loss {name} calls {full}.", hint=_RULES)


def _encode(name: str, value: Any) -> Any:
    """One argument: plain JSON as it is, everything else as an object with one key."""
    import torch

    match value:
        case None | bool() | str():
            return value
        case int() if -MAX_INT <= value < MAX_INT:
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case torch.fx.Node():
            return {"ref": value.name}
        case tuple():
            return {"tuple": [_encode(name, item) for item in value]}
        case list():
            return [_encode(name, item) for item in value]
        case dict():
            return {"dict": {str(key): _encode(name, item) for key, item in value.items()}}
        case slice():
            edges = (value.start, value.stop, value.step)
            return {"slice": [_encode(name, edge) for edge in edges]}
        case _:
            return _encode_rare(name, value)


def _encode_rare(name: str, value: Any) -> Any:
    import torch

    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind in ("dtype", "layout", "memory_format"):
        if isinstance(value, getattr(torch, kind)):
            return {kind: str(value).removeprefix("torch.")}
    raise ValidationError(
        f"The custom loss {name} passes a {type(value).__name__} as an argument, which cannot be "
        "sent.",
        hint=_RULES,
    )


def _check_output(name: str, output: Any) -> None:
    import torch

    if not isinstance(output, tuple | list) or len(output) != 2:
        raise ValidationError(f"The custom loss {name} must return (loss, metrics).")
    loss, metrics = output
    if not isinstance(loss, torch.fx.Node):
        raise ValidationError(f"The loss that {name} returns must be a tensor, not {loss!r}.")
    if not isinstance(metrics, dict):
        raise ValidationError(f"The metrics that {name} returns must be a dict.")
    for key, value in metrics.items():
        if not isinstance(key, str) or not _METRIC_NAME.fullmatch(key):
            raise ValidationError(
                f"The metric {key!r} of {name} must be called custom/<name>:sum or "
                "custom/<name>:mean, in lower case.",
                hint="The suffix says how the metric combines over examples.",
            )
        if not isinstance(value, torch.fx.Node):
            raise ValidationError(f"The metric {key!r} of {name} must be a tensor, not {value!r}.")
