"""The launcher's calls to the server: workers, queued work, draining."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

__all__ = ["OperatorCalls"]

_TIMEOUT_S = 10.0


class OperatorCalls:
    """Calls with the operator's token, which is read at each call because it may be rotated.

    Raises:
        OSError: by every call, if the server cannot be reached or refuses.
    """

    def __init__(self, url: str, token_file: Path) -> None:
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def workers(self) -> dict[str, Any]:
        """The workers, and the work that waits."""
        return self._call("GET", "workers")

    def drain(self, name: str) -> bool:
        """Drains a worker; False if the server refuses, such as for the last one."""
        try:
            self._call("POST", f"workers/{name}/drain")
        except urllib.error.HTTPError as error:
            with error:
                if error.code >= 500:
                    raise
                return False
        return True

    def resume(self, name: str) -> None:
        """Resumes a drained worker."""
        self._call("POST", f"workers/{name}/resume")

    def _call(self, method: str, path: str) -> dict[str, Any]:
        token = self._token_file.read_text(encoding="utf-8").split()[0]
        request = urllib.request.Request(  # noqa: S310 # the server's own address
            f"{self._url}/api/v1/operator/{path}",
            method=method,
            headers={"X-Operator-Token": token},
            data=b"{}" if method == "POST" else None,
        )
        with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
            result: dict[str, Any] = json.loads(answer.read())
            return result
