"""A TCP proxy on loopback that stands between a client and a real server and spoils their talk.

It reads whole HTTP/1.1 requests, asks its plan what is to happen to each, and has that done with
an `Exchange`, which can send the request on, deliver the answer, cut either side, crawl, or send
the request a second time. Knows nothing of the protocol above HTTP.

    with FaultProxy(server.base_url, SeededPlan(seed=1)) as proxy:
        client = ServiceClient(base_url=proxy.url, ...)
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from tests.support.tcp_listener import TcpListener, reset, target_of

LINE = b"\r\n"
END_OF_HEAD = b"\r\n\r\n"
LONGEST = 64 * 1024 * 1024


class Ended(Exception):
    """One side of the connection is gone, by its own will or by ours."""


@dataclass(frozen=True, slots=True)
class Message:
    """A whole request or answer, as its bytes."""

    head: bytes
    body: bytes

    @property
    def route(self) -> str:
        """The last part of a request's path."""
        return self.head.split(b" ", 2)[1].split(b"?")[0].rsplit(b"/", 1)[-1].decode("latin-1")

    @property
    def whole(self) -> bytes:
        """Head and body."""
        return self.head + self.body


Act = Callable[["Exchange"], Awaitable[None]]


class Plan(Protocol):
    """Decides what happens to each request."""

    def draw(self, route: str) -> tuple[str, random.Random, Act]:
        """The name of what happens, the dice for its details, and how to do it."""
        ...


class FaultProxy(TcpListener):
    """Passes whole requests on to a server."""

    def __init__(self, target_url: str, plan: Plan) -> None:
        super().__init__("fault-proxy", max_line_bytes=LONGEST)
        self.target = target_of(target_url)
        self.plan = plan
        self.struck: Counter[str] = Counter()
        """How often each thing happened."""
        self.passed_on = 0
        """Requests sent on so far; who waits to be overtaken looks at it."""
        self.mistakes: list[BaseException] = []
        """Errors of the proxy itself: a test must find none."""

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something beside the exchange that asked for it."""
        self._begin(self._guarded(work))

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.later(self._serve(Side(reader, writer)))

    async def _serve(self, client: Side) -> None:
        upstream = Upstream(self.target)
        try:
            while True:
                request = await client.read()
                name, dice, act = self.plan.draw(request.route)
                self.struck[name] += 1
                await act(Exchange(self, client, upstream, request, dice))
        finally:
            client.close()
            upstream.close()

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (Ended, OSError, asyncio.IncompleteReadError):
            return
        except Exception as error:
            self.mistakes.append(error)


class Side:
    """One end of a proxied connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> Message:
        """The next whole message.

        Raises:
            Ended: the other side closed.
        """
        try:
            head = await self._reader.readuntil(END_OF_HEAD)
            fields = _fields(head)
            if "100-continue" in fields.get("expect", ""):
                await self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if "chunked" in fields.get("transfer-encoding", ""):
                return Message(head, await self._read_chunks())
            return Message(
                head, await self._reader.readexactly(int(fields.get("content-length", 0)))
            )
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Ended from error

    async def write(self, data: bytes) -> None:
        """Sends bytes.

        Raises:
            Ended: the other side is gone.
        """
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Ended from error

    async def crawl(self, data: bytes, *, bytes_per_s: float, longest_s: float) -> None:
        """Sends bytes in small pieces, and what is left after a while at once."""
        step = max(1, int(bytes_per_s / 20))
        slowly = min(len(data), int(bytes_per_s * longest_s))
        for at in range(0, slowly, step):
            await self.write(data[at : min(at + step, slowly)])
            await asyncio.sleep(step / bytes_per_s)
        await self.write(data[slowly:])

    def end_writing(self) -> None:
        """Closes this direction and leaves the other open."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def rest(self) -> None:
        """Returns when the other side has closed."""
        while await self._reader.read(4096):
            pass

    def close(self) -> None:
        """An orderly end."""
        self._writer.close()

    def reset(self) -> None:
        """An end as after a crash: unsent bytes are lost and the other side gets a reset."""
        reset(self._writer)

    async def _read_chunks(self) -> bytes:
        body = bytearray()
        size = -1
        while size != 0:
            line = await self._reader.readuntil(LINE)
            size = int(line, 16)
            body += line + await self._reader.readexactly(size + len(LINE))
        return bytes(body)


class Upstream:
    """The server's end: opened at need, kept between the requests of one client connection."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._side: Side | None = None

    async def side(self) -> Side:
        """The open connection."""
        if self._side is None:
            self._side = await connect(self._target)
        return self._side

    def close(self, *, is_reset: bool = False) -> None:
        """Ends the connection, if there is one; the next request opens another."""
        side, self._side = self._side, None
        if side is not None and is_reset:
            side.reset()
        elif side is not None:
            side.close()


@dataclass(slots=True)
class Exchange:
    """One request on its way, and what can be done to it."""

    proxy: FaultProxy
    client: Side
    upstream: Upstream
    request: Message
    dice: random.Random

    async def forward(self) -> Message:
        """The server's answer to the request."""
        server = await self.upstream.side()
        await server.write(self.request.whole)
        self.proxy.passed_on += 1
        return await self.answer()

    async def answer(self) -> Message:
        """The server's answer, once the request was sent."""
        server = await self.upstream.side()
        answer = await server.read()
        if "close" in _fields(answer.head).get("connection", ""):
            self.upstream.close()
        return answer

    async def again(self) -> Message:
        """The answer to the same request on another connection."""
        server = await connect(self.proxy.target)
        try:
            await server.write(self.request.whole)
            return await server.read()
        finally:
            server.close()

    def cut(self) -> None:
        """Ends the client's connection, orderly or not.

        Raises:
            Ended: always; nothing more can be done with this connection.
        """
        self.client.reset() if self.dice.random() < 0.5 else self.client.close()
        raise Ended


async def connect(target: tuple[str, int]) -> Side:
    """A connection to the server."""
    return Side(*await asyncio.open_connection(*target, limit=LONGEST))


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.split(":", 1) for line in lines if line)
    return {name.strip().lower(): value.strip().lower() for name, value in pairs}
