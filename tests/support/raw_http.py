"""HTTP/1.1 on a plain socket: bytes of the test's choice out, one parsed answer at a time back."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

__all__ = ["Answer", "RawClient", "request"]


@dataclass(frozen=True)
class Answer:
    """One answer as it was read."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The JSON body."""
        return json.loads(self.body)


class RawClient:
    """One connection to the server at `url`."""

    def __init__(self, url: str, *, timeout_s: float = 20.0) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        self.socket = socket.create_connection((where.hostname, where.port), timeout=timeout_s)
        self._stream = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._stream.close()
        self.socket.close()

    def send(self, raw: bytes) -> None:
        """Sends these bytes."""
        self.socket.sendall(raw)

    def half_close(self) -> None:
        """Says that nothing more will be sent; answers can still come."""
        self.socket.shutdown(socket.SHUT_WR)

    def read(self, *, is_head: bool = False) -> Answer:
        """The next answer. Raises ConnectionError if there is none."""
        line = self._stream.readline()
        if not line:
            raise ConnectionError("the server closed the connection without an answer")
        headers: dict[str, str] = {}
        while (header := self._stream.readline()) not in {b"\r\n", b""}:
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        status = int(line.split(b" ", 2)[1])
        has_body = not (is_head or status < 200)
        length = int(headers.get("content-length", "0")) if has_body else 0
        return Answer(status, headers, self._stream.read(length))

    def ask(self, raw: bytes) -> Answer:
        """The answer to these bytes."""
        self.send(raw)
        return self.read(is_head=raw.startswith(b"HEAD "))

    def is_closed(self) -> bool:
        """Whether the server closes the connection without another byte."""
        try:
            return self._stream.read(1) == b""
        except ConnectionResetError:
            return True


def request(
    method: str,
    path: str,
    *headers: str,
    key: str | None = None,
    body: bytes = b"",
    host: str = "Host: x",
) -> bytes:
    """The bytes of a request; a body has its length declared."""
    lines = [f"{method} {path} HTTP/1.1", host, *headers]
    if key is not None:
        lines.append(f"X-API-Key: {key}")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*(line for line in lines if line), "", ""]).encode("latin-1") + body
