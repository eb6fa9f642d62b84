"""Graphs of uploaded losses: of functions, by hand, and of a random walk over all operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from tinkex.client.loss_trace import trace
from tinkex.engine.custom_loss.declaration import UploadedLoss, encode_loss
from tinkex.engine.custom_loss.operations import CONSTANTS, FUNCTIONS, KEYWORDS, METHODS, TEXTS
from tinkex.types.custom_loss import CustomLossGraph, CustomLossInput, CustomLossNode

INPUT = CustomLossInput(name="logprobs", rank=1)
PLACEHOLDER = CustomLossNode(op="placeholder", name="lp", target="logprobs")


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


def function(name: str, target: str, /, *args: Any, **kwargs: Any) -> CustomLossNode:
    return CustomLossNode(
        op="call_function", name=name, target=target, args=list(args), kwargs=kwargs
    )


def method(name: str, target: str, /, *args: Any, **kwargs: Any) -> CustomLossNode:
    return CustomLossNode(
        op="call_method", name=name, target=target, args=list(args), kwargs=kwargs
    )


def output(loss: str, **metrics: str) -> CustomLossNode:
    found = {f"custom/{key}:sum": ref(value) for key, value in metrics.items()}
    result = {"tuple": [ref(loss), {"dict": found}]}
    return CustomLossNode(op="output", name="output", target="output", args=[result])


def loss_of(*nodes: CustomLossNode, loss: str | None = None) -> UploadedLoss:
    """A loss of logprobs alone with these nodes; the last one is the loss."""
    ending = output(loss or nodes[-1].name)
    return UploadedLoss((INPUT,), CustomLossGraph(nodes=[PLACEHOLDER, *nodes, ending]))


def traced(fn: Callable[..., Any], ranks: Mapping[str, Any]) -> bytes:
    """The bytes of a function, traced as clients do."""
    found = trace(fn, ranks)
    return encode_loss(UploadedLoss(found.inputs, found.graph))


def random_node(draw: random.Random, name: str, names: list[str]) -> CustomLossNode:
    """Some operation, with arguments that rarely fit."""
    is_method = draw.random() < 0.5
    target = draw.choice(sorted(METHODS if is_method else FUNCTIONS))
    more = [_argument(draw, names) for _ in range(draw.choice(_COUNTS))]
    kwargs = {}
    if draw.random() < 0.3:
        kwargs[draw.choice(sorted(KEYWORDS))] = _argument(draw, names)
    made = method if is_method else function
    return made(name, target, ref(draw.choice(names)), *more, **kwargs)


_COUNTS = (0, 0, 0, 1, 1, 2, 3)
_NUMBERS = (0, 1, -1, 2, 3, 7, -5, 64, 2**31, 2**62, -(2**63), 1e300, -0.5, 1e-300, True, None)


def _argument(draw: random.Random, names: list[str]) -> Any:
    match draw.randrange(8):
        case 0 | 1 | 2:
            return ref(draw.choice(names))
        case 3 | 4:
            return draw.choice(_NUMBERS)
        case 5:
            return {"tuple": [draw.choice(_NUMBERS[:9]) for _ in range(draw.randrange(4))]}
        case 6:
            return [ref(draw.choice(names)) for _ in range(draw.randrange(4))]
        case _:
            kind = draw.choice(sorted(CONSTANTS))
            return draw.choice(
                [
                    {kind: draw.choice(sorted(CONSTANTS[kind]))},
                    {"slice": [draw.choice(_NUMBERS[:9]), None, draw.choice([None, 1, 2])]},
                    {"ellipsis": True},
                    {"float": draw.choice(["inf", "-inf", "nan"])},
                    draw.choice(sorted(TEXTS)),
                ]
            )
