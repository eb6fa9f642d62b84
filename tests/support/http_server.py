"""A small HTTP/1.1 server that decides over every byte it sends.

It runs on a loop in its own thread, listens on a free port of 127.0.0.1, reads requests
(Content-Length or chunked, with or without `Expect: 100-continue`) and delivers each answer the way
a `Fault` says: whole, slowly, twice, cut off. Knows nothing of what the requests mean.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

T = TypeVar("T")

Cut = Literal[
    "after_head", "after_request", "before_answer", "after_headers", "in_body", "after_answer"
]


@dataclass(slots=True)
class Request:
    """One request as it came off the wire; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""
    connection: int = 0
    route: str = ""
    """What the application calls this kind of request."""
    decoded: Any = None
    """The body as a value."""

    @property
    def path(self) -> str:
        """The path without its query."""
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        """The query's last value of each name."""
        return dict(parse_qsl(urlsplit(self.target).query))


@dataclass(slots=True)
class Response:
    """One answer; Content-Length is added when it is sent."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def head(self) -> bytes:
        """The status line and the headers, as bytes."""
        phrase = HTTPStatus(self.status).phrase
        lines = [f"HTTP/1.1 {self.status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if "content-length" not in {name.lower() for name in self.headers}:
            lines.append(f"Content-Length: {len(self.body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Gate(Protocol):
    """Something an answer waits for before it leaves."""

    async def passed(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How one exchange is handled; the default is: properly."""

    answer: Response | None = None
    """Sent in place of the application's own answer."""
    is_applied: bool = True
    """Whether the application sees the request at all."""
    cut: Cut | None = None
    """Where the connection ends."""
    cut_at: int = 0
    """How many bytes of the body are sent before `in_body` cuts."""
    is_reset: bool = False
    """End with a TCP reset rather than an orderly close."""
    bytes_per_s: float | None = None
    """How fast the body leaves."""
    copies: int = 1
    """How often the answer's bytes are written."""
    early_continue: bool = False
    """Send `100 Continue` at once, asked for or not, and the answer only after the gate."""
    withhold_continue: bool = False
    """Never send `100 Continue`, even where the client waits for it."""
    is_gzipped: bool = False
    is_chunked: bool = False
    """Send the body in chunks of unannounced total length."""
    gate: Gate | None = None


class Application(Protocol):
    """What an `HttpServer` serves."""

    def on_head(self, request: Request) -> Fault | None:
        """What to do before the body was read; None means: go on."""
        ...

    def on_request(self, request: Request) -> Fault:
        """How to handle the whole request."""
        ...

    async def respond(self, request: Request) -> Response:
        """The proper answer."""
        ...


class HttpServer:
    """Serves an application until stopped; start and stop may be called from any thread."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.port = 0
        self.connections_opened = 0
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="loopback-server", daemon=True)
        self._ready = threading.Event()

    @property
    def open_connections(self) -> int:
        """How many clients are connected now."""
        return len(self._connections)

    def start(self) -> None:
        """Listen; returns once connections are accepted."""
        self._thread.start()
        self._ready.wait(10)

    def stop(self) -> None:
        """End every connection and the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def call_soon(self, function: Any, *arguments: Any) -> None:
        """Run a function on the server's loop, some time soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(
                self._loop.create_server(self._connect, "127.0.0.1", 0, backlog=4096)
            )
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            self._loop.run_forever()
            server.close()
            self._loop.run_until_complete(self._close_connections())
        finally:
            self._loop.close()

    def _connect(self) -> _Connection:
        self.connections_opened += 1
        return _Connection(self.application, self._connections, self.connections_opened)

    async def _close_connections(self) -> None:
        for connection in tuple(self._connections):
            connection.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Connection(asyncio.Protocol):
    """One client's connection: requests in, answers out, one after the other."""

    def __init__(self, application: Application, alive: set[_Connection], number: int) -> None:
        self._application = application
        self._alive = alive
        self._number = number
        self._received = bytearray()
        self._more = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._alive.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._more.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._alive.discard(self)
        self._writable.set()
        self._task.cancel()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    async def _serve(self) -> None:
        while not self._transport.is_closing():
            request = await self._read_head()
            fault = self._application.on_head(request) or Fault()
            if fault.cut == "after_head":
                return self._end(fault)
            if "100-continue" in request.headers.get("expect", "") and not fault.withhold_continue:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.body = await self._read_body(request)
            await self._answer(request, self._application.on_request(request))

    async def _answer(self, request: Request, fault: Fault) -> None:
        if fault.early_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if fault.cut == "after_request":
            return self._end(fault)
        response = fault.answer or Response()
        if fault.is_applied:
            own = await self._application.respond(request)
            response = fault.answer or own
        if fault.gate is not None:
            await fault.gate.passed()
        if fault.cut == "before_answer":
            return self._end(fault)
        await self._deliver(response, fault)

    async def _deliver(self, response: Response, fault: Fault) -> None:
        if fault.is_gzipped:
            headers = {**response.headers, "Content-Encoding": "gzip"}
            response = Response(response.status, headers, gzip.compress(response.body))
        head, body = response.head(), response.body
        if fault.is_chunked:
            head, body = _in_chunks(response)
        if fault.cut == "after_headers":
            body = b""
        if fault.cut == "in_body":
            body = body[: fault.cut_at]
        if fault.bytes_per_s is not None:
            self._transport.write(head)
            await self._dribble(body, fault.bytes_per_s)
        else:
            self._transport.write((head + body) * fault.copies)
        await self._writable.wait()
        if fault.cut is not None:
            self._end(fault)

    async def _dribble(self, body: bytes, bytes_per_s: float) -> None:
        step = max(1, int(bytes_per_s / 50))
        for at in range(0, len(body), step):
            await asyncio.sleep(step / bytes_per_s)
            self._transport.write(body[at : at + step])

    def _end(self, fault: Fault) -> None:
        if fault.is_reset:
            _reset_on_close(self._transport)
            self._transport.abort()
        else:
            self._transport.close()

    async def _read_head(self) -> Request:
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            await self._wait_for_more()
        head = bytes(self._received[:end]).decode("latin-1")
        del self._received[: end + 4]
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        return Request(method, target, headers, connection=self._number)

    async def _read_body(self, request: Request) -> bytes:
        if "chunked" in request.headers.get("transfer-encoding", ""):
            return await self._read_chunked()
        return await self._take(int(request.headers.get("content-length", 0)))

    async def _read_chunked(self) -> bytes:
        body = bytearray()
        while size := int(await self._take_line(), 16):
            body += await self._take(size)
            await self._take_line()
        while await self._take_line():
            pass
        return bytes(body)

    async def _take_line(self) -> bytes:
        while (end := self._received.find(b"\r\n")) < 0:
            await self._wait_for_more()
        line = bytes(self._received[:end])
        del self._received[: end + 2]
        return line

    async def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            await self._wait_for_more()
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    async def _wait_for_more(self) -> None:
        self._more.clear()
        await self._more.wait()


def _in_chunks(response: Response) -> tuple[bytes, bytes]:
    headers = {**response.headers, "Transfer-Encoding": "chunked", "Content-Length": ""}
    head = Response(response.status, headers).head().replace(b"Content-Length: \r\n", b"")
    pieces = [response.body[at : at + 16] for at in range(0, len(response.body), 16)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head, body + b"0\r\n\r\n"


def _reset_on_close(transport: asyncio.Transport) -> None:
    """Make closing this connection a reset: what a crashed peer or a proxy does."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
