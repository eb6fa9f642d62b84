"""Checks whether an uploaded loss may run: every node, by its operation and its arguments.

Pure, without torch, so that a server answers at once. What depends on the shapes of the data is
checked when the loss runs, in `program`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tinkex.engine.custom_loss.arguments import ArgumentError, Ref, parse_arguments
from tinkex.engine.custom_loss.bounds import MAX_INPUTS, MAX_METRICS, MAX_NODES
from tinkex.engine.custom_loss.declaration import (
    LOGPROBS,
    METRIC_NAME,
    UploadedLoss,
    graph_error,
    read_loss,
)
from tinkex.engine.custom_loss.operations import (
    ATTRIBUTES,
    FUNCTIONS,
    KEYWORDS,
    METHODS,
    TEXTS,
    AllowedOperation,
)
from tinkex.types.custom_loss import CustomLossInput, CustomLossNode

__all__ = ["CheckedLoss", "Step", "check_loss", "checked_loss"]

_INPUT_NAME = re.compile(r"[a-z0-9_]{1,64}")
_NODE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Step:
    """One operation of a checked loss, with its arguments parsed."""

    name: str
    target: str
    operation: AllowedOperation
    is_method: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CheckedLoss:
    """A loss whose nodes are all allowed. Placeholders are by input; refs are names."""

    inputs: tuple[CustomLossInput, ...]
    placeholders: tuple[str, ...]
    steps: tuple[Step, ...]
    loss: Ref
    metrics: dict[str, Ref]


@lru_cache(maxsize=64)
def checked_loss(data: bytes) -> CheckedLoss:
    """The checked loss of these bytes, from a cache of recent losses.

    Raises:
        EngineUserError: a node or argument is not allowed.
    """
    return check_loss(read_loss(data))


def check_loss(loss: UploadedLoss) -> CheckedLoss:
    """The checked form of a declared loss.

    Raises:
        EngineUserError: a node or argument is not allowed; the message names the node.
    """
    _check_inputs(loss.inputs)
    nodes = loss.graph.nodes
    if len(nodes) > MAX_NODES:
        raise graph_error(
            f"The custom loss has {len(nodes)} nodes, and {MAX_NODES} is the limit. Write it with "
            "fewer operations.",
            value=len(nodes),
        )
    _check_order(loss)
    known: set[str] = set()
    steps: list[Step] = []
    for index, node in enumerate(nodes[:-1]):
        field = f"graph.nodes[{index}]"
        if not _NODE_NAME.fullmatch(node.name) or node.name in known:
            raise graph_error(
                f"{field} must have a name of its own, of letters, digits and _; it has "
                f"{node.name[:_SHOWN]!r}.",
                field,
                node.name,
            )
        if node.op != "placeholder":
            steps.append(_step(node, field, known))
        known.add(node.name)
    result, metrics = _output(nodes[-1], known)
    placeholders = tuple(node.name for node in nodes if node.op == "placeholder")
    return CheckedLoss(loss.inputs, placeholders, tuple(steps), result, metrics)


def _check_inputs(inputs: tuple[CustomLossInput, ...]) -> None:
    names = [each.name for each in inputs]
    if not 1 <= len(inputs) <= MAX_INPUTS or names[0] != LOGPROBS or inputs[0].rank == 0:
        raise graph_error(
            f"A custom loss takes {LOGPROBS} of rank 1 or 2 first, and at most {MAX_INPUTS} "
            f"tensors; this one takes {len(inputs)}.",
            "inputs",
            ", ".join(names),
        )
    wrong = [name for name in names if not _INPUT_NAME.fullmatch(name)]
    if wrong or len(set(names)) < len(names):
        raise graph_error(
            "Inputs of a custom loss have names of their own, of lower-case letters, digits and "
            f"_; this one takes {', '.join(name[:_SHOWN] for name in wrong or names)}.",
            "inputs",
            ", ".join(names),
        )


def _check_order(loss: UploadedLoss) -> None:
    """Checks that the placeholders are the inputs, in order and first, and the output is last."""
    nodes, count = loss.graph.nodes, len(loss.inputs)
    is_placed = [node.op == "placeholder" for node in nodes] == [
        place < count for place in range(len(nodes))
    ]
    is_named = [node.target for node in nodes[:count]] == [each.name for each in loss.inputs]
    is_ended = [place for place, node in enumerate(nodes) if node.op == "output"] == [
        len(nodes) - 1
    ]
    if not (is_placed and is_named and is_ended):
        raise graph_error(
            "The graph of a custom loss begins with one placeholder for each of its inputs "
            f"({', '.join(each.name for each in loss.inputs)}) and ends with one output.",
            "graph.nodes",
        )


def _step(node: CustomLossNode, field: str, known: set[str]) -> Step:
    where = f"{field} ({node.name})"
    is_method = node.op == "call_method"
    table = METHODS if is_method else FUNCTIONS
    operation = table.get(node.target) if node.op in ("call_function", "call_method") else None
    if operation is None:
        raise graph_error(
            f"{where} is a {node.op} of {node.target[:_SHOWN]!r}, which a custom loss may not use "
            "on this server. Write it with other operations, or compute the loss on the client: "
            "give the function itself to forward_backward_custom.",
            field,
            node.target,
        )
    texts = TEXTS | ATTRIBUTES if operation.size == "attribute" else TEXTS
    try:
        _check_keywords(node)
        args, kwargs = parse_arguments(node.args, node.kwargs, known, texts)
        if operation.size == "attribute":
            _check_attribute(args, kwargs)
        if is_method and not (args and isinstance(args[0], Ref)):
            raise ArgumentError("is a method without an object")
    except ArgumentError as error:
        raise graph_error(
            f"{where}, {node.target}, {error}, which a custom loss may not have on this server.",
            field,
            node.target,
        ) from error
    return Step(node.name, node.target, operation, is_method, args, kwargs)


def _check_keywords(node: CustomLossNode) -> None:
    for name, value in node.kwargs.items():
        is_fixed = name in ("out", "inplace")
        if name not in KEYWORDS or (is_fixed and value not in (None, False)):
            raise ArgumentError(f"has the keyword {name[:40]!r} with {str(value)[:40]!r}")
    if node.target.startswith("torch.nn.functional.relu") and len(node.args) > 1:
        raise ArgumentError("has more than one argument")  # the second one is `inplace`


def _check_attribute(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    match args:
        case (Ref(), str(name)) if name in ATTRIBUTES and not kwargs:
            return
    raise ArgumentError("reads something other than " + ", ".join(sorted(ATTRIBUTES)))


def _output(node: CustomLossNode, known: set[str]) -> tuple[Ref, dict[str, Ref]]:
    try:
        args, kwargs = parse_arguments(node.args, node.kwargs, known)
    except ArgumentError as error:
        raise graph_error(f"The output of the custom loss {error}.", "graph.nodes") from error
    match args, kwargs:
        case (((Ref() as loss, dict(metrics)) | [Ref() as loss, dict(metrics)]),), {}:
            pass
        case _:
            raise graph_error(
                "The output of a custom loss is (loss, metrics): a node, and a dict of nodes.",
                "graph.nodes",
            )
    if len(metrics) > MAX_METRICS:
        raise graph_error(
            f"A custom loss reports at most {MAX_METRICS} metrics, not {len(metrics)}.",
            "graph.nodes",
            len(metrics),
        )
    for name, value in metrics.items():
        if not METRIC_NAME.fullmatch(name) or not isinstance(value, Ref):
            raise graph_error(
                f"The metric {name[:_SHOWN]!r} of a custom loss must be a node and be called "
                "custom/<name>:sum or custom/<name>:mean, in lower case.",
                "graph.nodes",
                name,
            )
    return loss, metrics
