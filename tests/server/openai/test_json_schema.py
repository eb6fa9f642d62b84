"""Our part of JSON Schema, held against the reference implementation."""

from __future__ import annotations

import itertools
from typing import Any

import jsonschema
import pytest

from tinkex.server.openai.json_schema import SchemaError, check_schema, mismatch

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 1.0, 1.5, -3, 10, 1e300, "", "a", "abc", "1"),
    *([], [1], [1, "a"], ["a", "b", "c"], [[1]], {}, {"a": 1}, {"a": "x", "b": 2}, {"b": None}),
    {"a": {"a": {"a": 1}}},
]
SCHEMAS: list[Any] = [
    True,
    False,
    {},
    {"title": "t", "description": "d", "default": 1, "examples": [], "format": "date"},
    *({"type": name} for name in ("object", "array", "string", "boolean", "null", "number")),
    {"type": "integer"},
    {"type": ["integer", "null"]},
    {"enum": [1, "a", None, [1], {"a": 1}]},
    {"enum": [True]},
    {"const": 1},
    {"const": {"a": 1}},
    {"minimum": 1, "maximum": 5},
    {"exclusiveMinimum": 1, "exclusiveMaximum": 10},
    {"multipleOf": 0.5},
    {"minLength": 1, "maxLength": 2},
    {"minItems": 1, "maxItems": 2},
    {"minProperties": 1, "maxProperties": 1},
    {"required": ["a"]},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    {"properties": {"a": True}, "additionalProperties": {"type": "integer"}},
    {"items": {"type": "integer"}},
    {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}},
    {"anyOf": [{"type": "string"}, {"minimum": 5}]},
    {"oneOf": [{"type": "number"}, {"type": "integer"}]},
    {"allOf": [{"type": "number"}, {"minimum": 1}]},
    {"not": {"type": "string"}},
    {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}},
    {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "array"}}},
    {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}}},
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_it_judges_as_the_reference_does(schema: Any) -> None:
    check_schema(schema)
    reference = jsonschema.Draft202012Validator(schema)
    judged = [(value, mismatch(value, schema) is None) for value in VALUES]
    assert judged == [(value, reference.is_valid(value)) for value in VALUES]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"pattern": "a"}, "'pattern', which is not supported"),
        ({"properties": {"a": {"if": {}}}}, r"\$.properties has the keyword 'if'"),
        ({"properties": []}, "properties has the wrong type"),
        ({"anyOf": {}}, "anyOf has the wrong type"),
        ({"type": "text"}, "type has the wrong type"),
        ({"minimum": "1"}, "minimum has the wrong type"),
        ({"minLength": -1}, "minLength has the wrong type"),
        ({"multipleOf": 0}, "multipleOf has the wrong type"),
        ({"required": "a"}, "required has the wrong type"),
        ({"enum": 1}, "enum has the wrong type"),
        ({"$ref": "http://x"}, "must be '#'"),
        ({"$ref": "#/$defs/x"}, "must be '#'"),
        ({"$ref": "#/properties/x", "properties": {"x": {}}}, "must be '#'"),
        ({"$ref": 7}, "must be '#'"),
        ([], "must be an object"),
        (7, "must be an object"),
    ],
    ids=str,
)
def test_what_is_not_judged_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check_schema(schema)


def test_work_and_depth_are_bounded() -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"not": deep}
    with pytest.raises(SchemaError, match="64 levels"):
        check_schema(deep)
    loop = {"$ref": "#"}
    check_schema(loop)
    assert "too deeply" in (mismatch(1, loop) or "")
    fork = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}
    check_schema(fork)
    assert "more than" in (mismatch(1, fork) or "")


def test_a_reason_names_the_place() -> None:
    schema = {"properties": {"a": {"items": {"type": "string"}}}}
    assert mismatch({"a": ["x", 1]}, schema) == "$.a[1] is not of type string"
    several = list(itertools.repeat({"a": [1]}, 3))
    assert mismatch(several, {"items": schema}) == "$[0].a[0] is not of type string"
