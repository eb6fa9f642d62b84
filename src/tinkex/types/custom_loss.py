"""An uploaded loss function: a graph of named steps. Does not interpret the steps."""

from __future__ import annotations

from typing import Any, Literal

from tinkex.types._model import ProtocolModel

CustomLossInputRank = Literal[0, 1, 2]


class CustomLossInput(ProtocolModel, frozen=True, kw_only=True):
    """A tensor a custom loss takes."""

    name: str
    rank: CustomLossInputRank


class CustomLossNode(ProtocolModel, frozen=True, kw_only=True):
    """One step of a traced loss function."""

    op: Literal["placeholder", "get_attr", "call_function", "call_method", "call_module", "output"]
    name: str
    target: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class CustomLossGraph(ProtocolModel, frozen=True, kw_only=True):
    """A traced loss function."""

    format: Literal[1] = 1
    nodes: list[CustomLossNode]
