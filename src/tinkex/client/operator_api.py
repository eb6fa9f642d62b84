"""The routes for operators, as a program calls them: plain blocking HTTP with the operator's token.

Apart from the SDK's transport, which sends a tenant's key with every request. A redirect is not
followed: the token is for one server.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

from tinkex.errors import (
    APIConnectionError,
    APIResponseValidationError,
    APIStatusError,
    NotFoundError,
    status_error_class,
)
from tinkex.wire import json

__all__ = ["OperatorApi"]

_MAX_BYTES = 16 << 20


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class OperatorApi:
    """The status and the workers of one server. `base_url` is its address without `/api/v1`."""

    def __init__(self, base_url: str, token: str, *, timeout_s: float = 30.0) -> None:
        self.base_url = base_url
        self._url = f"{base_url}/api/v1/operator/workers"
        self._token = token
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_NoRedirects)

    def status(self) -> dict[str, Any]:
        """What the server does now, with every tenant's queue and all that is known of workers."""
        return self._ask("GET", f"{self.base_url}/api/v1/operator/status")

    def workers(self) -> dict[str, Any]:
        """The workers, and the work that waits: `{"workers": [...], "waiting": {...}}`."""
        return self._ask("GET", self._url)

    def drain(self, name: str) -> dict[str, Any]:
        """The worker's entry, once it takes no more work."""
        return self._ask("POST", f"{self._url}/{quote(name, safe='')}/drain")

    def resume(self, name: str) -> dict[str, Any]:
        """The worker's entry, once it takes work again."""
        return self._ask("POST", f"{self._url}/{quote(name, safe='')}/resume")

    def worker(self, name: str) -> dict[str, Any]:
        """The entry of one worker.

        Raises:
            NotFoundError: there is none of that name any more.
        """
        for entry in self.workers()["workers"]:
            if entry["name"] == name:
                return dict(entry)
        raise NotFoundError(
            f"The worker {name} is gone.",
            status=404,
            hint="'tinkex workers' lists those that are there.",
            code="unknown-worker",
        )

    def _ask(self, method: str, url: str) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310  the operator's own address
            url, method=method, headers={"X-Operator-Token": self._token}
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                body = answer.read(_MAX_BYTES)
        except urllib.error.HTTPError as error:
            raise _status_error(error) from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)  # urllib wraps what the socket said
            raise APIConnectionError(f"{url} got no complete answer: {reason}.") from error
        found = json.decode(body, dict[str, Any])
        if "workers" not in found and "name" not in found:
            raise APIResponseValidationError(f"{url} answered something else than workers.")
        return found


def _status_error(error: urllib.error.HTTPError) -> APIStatusError:
    text = error.read(_MAX_BYTES).decode("utf-8", "replace")
    try:
        fields = json.decode(text.encode(), dict[str, Any])
    except APIResponseValidationError:
        fields = {}
    return status_error_class(error.code)(
        f"The server answered {error.code}: {fields.get('detail') or error.reason}",
        status=error.code,
        body=text[:2000],
        code=fields.get("code"),
        hint=fields.get("hint"),
    )
