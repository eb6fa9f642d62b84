"""Errors in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`.

Every refusal on these paths has this form, also those of the gate and of the header checks
(`OpenAIErrors`). Statuses are OpenAI's: 400 where the Tinker protocol has 422.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tinkex.errors import ClientError, TinkexError
from tinkex.server.errors import error_response
from tinkex.server.http.openai_paths import is_openai_path

__all__ = ["BadParameter", "ModelNotFound", "OpenAIErrors", "error_answer", "error_fields"]

_STATUS: Final = {422: 400, 410: 404}
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES: Final = {
    "unauthenticated": "invalid_api_key",
    "unknown-model": "model_not_found",
    "no-such-checkpoint": "model_not_found",
    "context-too-long": "context_length_exceeded",
    "rate-limited": "rate_limit_exceeded",
    "busy": "rate_limit_exceeded",
}
_PARAMS: Final = {
    "num_samples": "n",
    "topk_sample_logprobs": "top_logprobs",
    "topk_prompt_logprobs": "logprobs",
}
_NAMED_FIRST: Final = re.compile(r"(\w+)(?:=|\[| has | holds )")
_UNKNOWN_FIELD: Final = re.compile(r"unknown field `(\w+)`")


class BadParameter(ClientError):
    """400: a parameter of a request to the OpenAI endpoint is not supported or has a bad value."""

    code = "invalid-parameter"
    status = 400

    def __init__(
        self, message: str, *, param: str | None = None, hint: str = "", code: str | None = None
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.param = param


class ModelNotFound(ClientError):
    """404: neither a base model nor a checkpoint of the caller has this name."""

    code = "unknown-model"
    status = 404
    param = "model"


def error_fields(status: int, code: str, message: str, hint: str, param: str | None) -> bytes:
    """The body of an error."""
    text = f"{message} {hint}".strip()
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    shown = {
        "message": text,
        "type": kind,
        "param": param,
        "code": _CODES.get(code, code.replace("-", "_") or None),
    }
    return msgspec.json.encode({"error": shown})


def error_answer(error: TinkexError) -> Response:
    """The answer to an error that a route of the endpoint raised."""
    answer = error_response(error)
    status = _STATUS.get(answer.status_code, answer.status_code)
    fields = msgspec.json.decode(answer.body)
    body = error_fields(status, error.code, fields["detail"], error.hint, _param(error))
    headers = {k: v for k, v in answer.headers.items() if k == "retry-after"}
    return Response(body, status, headers, "application/json")


def _param(error: TinkexError) -> str | None:
    """The parameter that has to change, if the error says which one."""
    named = getattr(error, "param", None) or getattr(error, "field", None)
    if not named and error.blame != "server":
        found = _UNKNOWN_FIELD.search(error.message) or _NAMED_FIRST.match(error.message)
        named = found and found[1]
    return _PARAMS.get(named, named) if named else None


class OpenAIErrors:
    """Wraps the whole application: refusals on the endpoint's paths get OpenAI's form."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_openai_path(scope["path"]):
            send = _Translated(send).send
        await self._app(scope, receive, send)


class _Translated:
    """Passes responses on; an error response is buffered until it is complete, and rewritten."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_all(self._start)

    async def _send_all(self, start: Message) -> None:
        fields = _tinkex_error(self._body)
        body, status = self._body, int(start["status"])
        if fields is not None:
            status = _STATUS.get(status, status)
            body = error_fields(status, fields["code"], fields["detail"], fields["hint"], None)
        length = str(len(body)).encode()
        headers = [
            (name, length if name.lower() == b"content-length" else value)
            for name, value in start["headers"]
        ]
        await self._send({**start, "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _tinkex_error(body: bytes) -> dict[str, Any] | None:
    """The fields of a Tinkex error; None if the body is not one, or has OpenAI's form already."""
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return (
        fields if isinstance(fields, dict) and {"detail", "code", "hint"} <= fields.keys() else None
    )
