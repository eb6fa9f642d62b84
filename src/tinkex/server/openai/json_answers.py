"""`response_format`: whether an answer is JSON of the requested schema.

Sampling is not constrained and the prompt is not changed; the answer is checked when it is
complete. One that does not match is returned unchanged with the reason in `refusal`, which
OpenAI's clients read before they parse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tinkex.server.openai.errors import BadParameter
from tinkex.server.openai.json_schema import SchemaError, check_schema, mismatch

__all__ = ["JsonCheck", "json_check"]


class JsonCheck:
    """Checks a complete answer against the requested format."""

    def __init__(self, schema: Mapping[str, Any] | bool | None) -> None:
        self._schema = schema  # None: any object

    def __call__(self, text: str) -> str | None:
        """Why the answer does not match; None if it does."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"The answer is not valid JSON: {error}."
        if self._schema is None:
            return None if isinstance(value, dict) else "The answer is JSON, but not an object."
        found = mismatch(value, self._schema)
        return None if found is None else f"The answer does not fit the schema: {found}."


def json_check(response_format: Mapping[str, Any] | None) -> JsonCheck | None:
    """The check for a request's `response_format`; None if any text is allowed.

    Raises:
        BadParameter: the format is not known, or its schema has a keyword that is not.
    """
    kind = "text" if response_format is None else response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return JsonCheck(None)
    inner = response_format.get("json_schema") if response_format else None
    if kind != "json_schema" or not isinstance(inner, dict):
        raise BadParameter(
            f"response_format.type={str(kind)[:100]!r} must be 'text', 'json_object' or "
            "'json_schema' with a json_schema.",
            param="response_format",
        )
    schema = inner.get("schema", True)
    try:
        check_schema(schema)
    except SchemaError as error:
        raise BadParameter(
            f"response_format.json_schema: {error}", param="response_format"
        ) from error
    return JsonCheck(schema)
