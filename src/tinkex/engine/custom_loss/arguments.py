"""The arguments of a node: plain data, and references to nodes before it.

`parse` reads the wire form once, without torch; `fill` puts the values of the nodes in their
places at every run. The forms are those of the protocol: JSON scalars and lists stand for
themselves, everything else is an object with one key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from tinkex.engine.custom_loss.bounds import MAX_ITEMS, MAX_NESTING
from tinkex.engine.custom_loss.operations import CONSTANTS, TEXTS

__all__ = ["ArgumentError", "Ref", "Slice", "TorchConstant", "fill", "parse_arguments"]

_MAX_INT = 2**63
_SPECIAL_FLOATS = ("inf", "-inf", "nan")


class ArgumentError(ValueError):
    """A forbidden argument; the message is a predicate whose subject is the node."""


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of an earlier node."""

    name: str


@dataclass(frozen=True, slots=True)
class TorchConstant:
    """A dtype, layout or memory format of torch, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice; its edges may be references."""

    edges: tuple[Any, ...]


def parse_arguments(
    args: list[Any], kwargs: Mapping[str, Any], known: Container[str], texts: Container[str] = TEXTS
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in the form that `fill` takes. `known` has the names of earlier nodes.

    Raises:
        ArgumentError: one of them is not allowed.
    """
    parser = _Parser(known, texts)
    found = tuple(parser.parse(each) for each in args)
    return found, {key: parser.parse(value) for key, value in kwargs.items()}


def fill(argument: Any, values: Mapping[str, Any], constant: Callable[[str], object]) -> Any:
    """The argument with the values of its nodes, and with torch's constants."""
    match argument:
        case Ref(name):
            return values[name]
        case TorchConstant(name):
            return constant(name)
        case Slice(edges):
            return slice(*(fill(edge, values, constant) for edge in edges))
        case tuple():
            return tuple(fill(each, values, constant) for each in argument)
        case list():
            return [fill(each, values, constant) for each in argument]
        case dict():
            return {key: fill(each, values, constant) for key, each in argument.items()}
        case _:
            return argument


class _Parser:
    """Reads the arguments of one node, and counts them."""

    def __init__(self, known: Container[str], texts: Container[str]) -> None:
        self._known, self._texts = known, texts
        self._items = 0

    def parse(self, value: Any, depth: int = 0) -> Any:
        self._items += 1
        if self._items > MAX_ITEMS:
            raise ArgumentError(f"has more than {MAX_ITEMS} values in its arguments")
        if depth > MAX_NESTING:
            raise ArgumentError(f"has arguments more than {MAX_NESTING} levels deep")
        match value:
            case None | bool():
                return value
            case int() | float():
                return _number(value)
            case str():
                if value not in self._texts:
                    raise ArgumentError(f"has the text {value[:40]!r} as an argument")
                return value
            case list():
                return [self.parse(each, depth + 1) for each in value]
            case {"ref": str(name)} if len(value) == 1:
                return self._ref(name)
            case {"tuple": list(items)} if len(value) == 1:
                return tuple(self.parse(each, depth + 1) for each in items)
            case {"dict": dict(items)} if len(value) == 1:
                return {str(key): self.parse(each, depth + 1) for key, each in items.items()}
            case {"slice": [first, last, step]} if len(value) == 1:
                edges = (self.parse(each, depth + 1) for each in (first, last, step))
                return Slice(tuple(edges))
            case dict() if len(value) == 1:
                return _rare(*next(iter(value.items())))
        raise ArgumentError(f"has an argument of an unknown form: {str(value)[:40]!r}")

    def _ref(self, name: str) -> Ref:
        if name not in self._known:
            raise ArgumentError(f"refers to {name[:40]!r}, which is no node before it")
        return Ref(name)


def _number(value: float) -> float:
    if isinstance(value, int) and not -_MAX_INT <= value < _MAX_INT:
        raise ArgumentError("has a whole number of more than 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError("has a number that is not finite, written without its own form")
    return value


def _rare(kind: str, value: object) -> Any:
    match kind, value:
        case "ellipsis", True:
            return ...
        case "float", str() if value in _SPECIAL_FLOATS:
            return float(value)
        case (("dtype" | "layout" | "memory_format"), str()) if value in CONSTANTS[kind]:
            return TorchConstant(value)
        case "device", "cpu":
            return "cpu"
    raise ArgumentError(f"has an argument {kind[:40]!r} of {str(value)[:40]!r}")
