"""JSON Schema, the part that OpenAI's structured outputs take, and a little more.

Pure. A schema with an unsupported keyword is refused, so that no answer passes unchecked.
Annotations (`title`, `description`, ...) are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sized
from typing import Any, Final, cast

__all__ = ["SchemaError", "check_schema", "mismatch"]

_MAX_DEPTH: Final = 64
_MAX_STEPS: Final = 50_000
_NUMBERS: Final = (int, float)


class SchemaError(ValueError):
    """A schema is malformed, or has a keyword that is not supported."""


class _TooMuchWork(Exception):
    """The validation exceeds its step limit: nested alternatives multiply."""


def check_schema(schema: Any) -> None:
    """Returns if every keyword of the schema is supported.

    Raises:
        SchemaError: one is not; the message says where.
    """
    _check(schema, schema, "$", 0)


def mismatch(value: Any, schema: Mapping[str, Any] | bool) -> str | None:
    """Why a value does not match a checked schema; None if it does."""
    try:
        return _Judge(schema).judge(value, schema, "$", 0)
    except _TooMuchWork:
        return f"checking it takes more than {_MAX_STEPS} steps"


def _check(schema: Any, root: Any, where: str, depth: int) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        raise SchemaError(f"{where} must be an object, nested at most {_MAX_DEPTH} levels deep.")
    for keyword, argument in schema.items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword == "$ref":
            _resolve(argument, root)
        elif keyword in _INNER:
            for part in _schemas_in(argument, _INNER[keyword], f"{where}.{keyword}"):
                _check(part, root, f"{where}.{keyword}", depth + 1)
        elif keyword not in _ARGUMENTS:
            raise SchemaError(f"{where} has the keyword {keyword!r}, which is not supported.")
        elif not _ARGUMENTS[keyword](argument):
            raise SchemaError(f"{where}.{keyword} has the wrong type.")


def _schemas_in(argument: Any, holder: type, where: str) -> list[Any]:
    """The schemas that a keyword's argument holds."""
    if holder is object:
        return [argument]
    if holder is dict and isinstance(argument, dict):
        return list(argument.values())
    if holder is list and isinstance(argument, list):
        return argument
    raise SchemaError(f"{where} has the wrong type.")


def _resolve(reference: Any, root: Any) -> Any:
    """The schema that `#` or `#/$defs/name` refers to."""
    parts = reference.split("/", 2) if isinstance(reference, str) else []
    if parts == ["#"]:
        return root
    if len(parts) == 3 and parts[0] == "#" and parts[1] in ("$defs", "definitions"):
        name = parts[2].replace("~1", "/").replace("~0", "~")
        found = root.get(parts[1], {}).get(name) if isinstance(root, dict) else None
        if isinstance(found, dict | bool):
            return found
    raise SchemaError(
        f"$ref {str(reference)[:100]!r} must be '#', or name a schema in $defs as '#/$defs/NAME'."
    )


class _Judge:
    """Validates values by one root schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._steps = 0

    def judge(self, value: Any, schema: Any, where: str, depth: int) -> str | None:
        """Why the value at this path does not match this part of the schema; None if it does."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _TooMuchWork
        if isinstance(schema, bool):
            return None if schema else f"{where} is not allowed"
        if depth > _MAX_DEPTH:
            return f"{where} is nested too deeply"
        for keyword, argument in schema.items():
            inner = getattr(self, f"_{keyword.lstrip('$')}", None)
            if keyword in _TESTS:
                test, wanted = _TESTS[keyword]
                found = None if test(value, argument) else f"{where} {wanted.format(argument)}"
            elif inner is not None:
                found = inner(value, argument, schema, where, depth + 1)
            else:
                continue
            if found is not None:
                return str(found)
        return None

    def _ref(self, value: Any, to: str, _: Any, where: str, depth: int) -> str | None:
        return self.judge(value, _resolve(to, self._root), where, depth)

    def _properties(self, value: Any, parts: Any, _: Any, where: str, depth: int) -> str | None:
        named = parts.items() if isinstance(value, dict) else ()
        found = (
            self.judge(value[name], part, f"{where}.{name}", depth)
            for name, part in named
            if name in value
        )
        return next(filter(None, found), None)

    def _additionalProperties(
        self, value: Any, part: Any, schema: Any, where: str, depth: int
    ) -> str | None:
        known = schema.get("properties", {})
        others = [name for name in value if name not in known] if isinstance(value, dict) else ()
        found = (self.judge(value[name], part, f"{where}.{name}", depth) for name in others)
        return next(filter(None, found), None)

    def _items(self, value: Any, part: Any, schema: Any, where: str, depth: int) -> str | None:
        first = len(schema.get("prefixItems", ()))
        rest = list(enumerate(value))[first:] if isinstance(value, list) else ()
        found = (self.judge(each, part, f"{where}[{i}]", depth) for i, each in rest)
        return next(filter(None, found), None)

    def _prefixItems(self, value: Any, parts: Any, _: Any, where: str, depth: int) -> str | None:
        pairs = zip(value, parts, strict=False) if isinstance(value, list) else ()
        found = (self.judge(v, p, f"{where}[{i}]", depth) for i, (v, p) in enumerate(pairs))
        return next(filter(None, found), None)

    def _anyOf(self, value: Any, parts: Any, _: Any, where: str, depth: int) -> str | None:
        found = [self.judge(value, part, where, depth) for part in parts]
        return None if None in found else f"{where} matches no schema of anyOf"

    def _oneOf(self, value: Any, parts: Any, _: Any, where: str, depth: int) -> str | None:
        count = [self.judge(value, part, where, depth) for part in parts].count(None)
        return None if count == 1 else f"{where} matches {count} schemas of oneOf"

    def _allOf(self, value: Any, parts: Any, _: Any, where: str, depth: int) -> str | None:
        found = (self.judge(value, part, where, depth) for part in parts)
        return next(filter(None, found), None)

    def _not(self, value: Any, part: Any, _: Any, where: str, depth: int) -> str | None:
        return (
            f"{where} matches its not schema" if not self.judge(value, part, where, depth) else None
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _has_type(value: Any, wanted: Any) -> bool:
    return any(_TYPES[name](value) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _are_types(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list) and all(name in _TYPES for name in names)


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return bool(one == other)


def _sized(kind: type, holds: Callable[[int, int], bool]) -> Callable[[Any, Any], bool]:
    def has_size(value: Any, bound: Any) -> bool:
        return not isinstance(value, kind) or holds(len(cast(Sized, value)), bound)

    return has_size


def _numeric(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, bound: not _is_number(value) or holds(value, bound)


def _is_multiple(value: float, of: float) -> bool:
    quotient = value / of
    return math.isfinite(quotient) and abs(quotient - round(quotient)) < 1e-9


_TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": _is_number,
    "integer": lambda v: _is_number(v) and float(v).is_integer(),
}
_TESTS: Final[dict[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "type": (_has_type, "is not of type {}"),
    "enum": (lambda v, all_: any(_same(v, each) for each in all_), "is not one of {}"),
    "const": (_same, "is not {}"),
    "required": (
        lambda v, names: not isinstance(v, dict) or all(name in v for name in names),
        "does not have all of {}",
    ),
    "minimum": (_numeric(lambda v, b: v >= b), "is below {}"),
    "maximum": (_numeric(lambda v, b: v <= b), "is above {}"),
    "exclusiveMinimum": (_numeric(lambda v, b: v > b), "is not above {}"),
    "exclusiveMaximum": (_numeric(lambda v, b: v < b), "is not below {}"),
    "multipleOf": (_numeric(_is_multiple), "is no multiple of {}"),
    "minLength": (_sized(str, lambda n, b: n >= b), "is shorter than {}"),
    "maxLength": (_sized(str, lambda n, b: n <= b), "is longer than {}"),
    "minItems": (_sized(list, lambda n, b: n >= b), "has fewer than {} items"),
    "maxItems": (_sized(list, lambda n, b: n <= b), "has more than {} items"),
    "minProperties": (_sized(dict, lambda n, b: n >= b), "has fewer than {} properties"),
    "maxProperties": (_sized(dict, lambda n, b: n <= b), "has more than {} properties"),
}
_ARGUMENTS: Final[dict[str, Callable[[Any], bool]]] = {
    "type": _are_types,
    "enum": lambda a: isinstance(a, list),
    "const": lambda _: True,
    "required": lambda a: isinstance(a, list) and all(isinstance(each, str) for each in a),
    "multipleOf": lambda a: _is_number(a) and a > 0,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        _is_count,
    ),
}
_INNER: Final[dict[str, type]] = {
    "properties": dict,
    "$defs": dict,
    "definitions": dict,
    "additionalProperties": object,
    "items": object,
    "not": object,
    "prefixItems": list,
    "anyOf": list,
    "oneOf": list,
    "allOf": list,
}
"""Keywords that hold schemas: by name, in a list, or a single one (object)."""
_ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "$schema", "$id", "$comment", "format"}
    | {"deprecated", "readOnly", "writeOnly"}
)
