"""Answers of the loopback service, as HTTP responses."""

from __future__ import annotations

import json
from typing import Any

from tests.support.http_server import Response

JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}


class Refusal(Exception):
    """A request the service answers with an error status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.response = as_json({"detail": detail}, status)


def as_json(value: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(status, dict(JSON), json.dumps(value).encode())


def as_protobuf(body: bytes) -> Response:
    """A protobuf answer."""
    return Response(200, dict(PROTOBUF), body)
