"""One address for several servers: a TCP forwarder to the one that is ready.

It asks each server's `/healthz` all the time, as a load balancer does. When another server becomes
ready it cuts the connections to the one before, which may be stopped and would never close them.

    with Forwarder([first.base_url, second.base_url]) as forwarder:
        client = ServiceClient(base_url=forwarder.url, ...)
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

__all__ = ["Forwarder"]

Target = tuple[str, int]

_PROBE_EVERY_S = 0.1
_PROBE_TIMEOUT_S = 1.0
_PART_BYTES = 1 << 16


class Forwarder:
    """Listens on a free port of 127.0.0.1; runs in its own thread."""

    def __init__(self, urls: list[str]) -> None:
        self._targets = [_target(url) for url in urls]
        self._current: Target | None = None
        self._open: dict[asyncio.Task[None], Target] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)
        self._ready = threading.Event()
        self._port = 0

    @property
    def url(self) -> str:
        """Where clients find the servers."""
        return f"http://127.0.0.1:{self._port}"

    def add(self, url: str) -> None:
        """Has one more server asked whether it is ready."""
        self._targets.append(_target(url))

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        server = self._loop.run_until_complete(start)
        self._port = server.sockets[0].getsockname()[1]
        watching = self._loop.create_task(self._watch())
        self._ready.set()
        self._loop.run_forever()
        server.close()
        watching.cancel()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _watch(self) -> None:
        while True:
            # A server that is silent stays the target until another one is ready: it may be slow.
            targets = [*self._targets]
            answers = await asyncio.gather(*(_is_ready(each) for each in targets))
            ready = [each for each, answer in zip(targets, answers, strict=True) if answer]
            if ready and self._current not in ready:
                self._current = ready[0]
                self._cut_others(ready[0])
            await asyncio.sleep(_PROBE_EVERY_S)

    def _cut_others(self, target: Target) -> None:
        for task, its_target in self._open.items():
            if its_target != target:
                task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._current is None:
            writer.close()
            return
        task = self._loop.create_task(_forward(reader, writer, self._current))
        self._open[task] = self._current
        task.add_done_callback(self._open.pop)


def _target(url: str) -> Target:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


async def _is_ready(target: Target) -> bool:
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*target)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target
) -> None:
    """Passes bytes both ways until one side closes."""
    try:
        far_reader, far_writer = await asyncio.open_connection(*target)
    except OSError:
        writer.close()
        return
    ways = [
        asyncio.create_task(_pass_on(reader, far_writer)),
        asyncio.create_task(_pass_on(far_reader, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        writer.transport.abort()
        far_writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(_PART_BYTES):
            writer.write(part)
            await writer.drain()
