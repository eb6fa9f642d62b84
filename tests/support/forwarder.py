"""One address for several servers: a TCP forwarder to the one that is ready.

It asks each server's `/healthz` all the time, as a load balancer does. When another server becomes
ready it cuts the connections to the one before, which may be stopped and would never close them.

    with Forwarder([first.base_url, second.base_url]) as forwarder:
        client = ServiceClient(base_url=forwarder.url, ...)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.support.tcp_listener import Target, TcpListener, pass_on, target_of

__all__ = ["Forwarder"]

_PROBE_EVERY_S = 0.1
_PROBE_TIMEOUT_S = 1.0


class Forwarder(TcpListener):
    """Passes connections on to the server that is ready."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__("forwarder")
        self._targets = [target_of(url) for url in urls]
        self._current: Target | None = None
        self._open: dict[asyncio.Task[None], Target] = {}

    def add(self, url: str) -> None:
        """Has one more server asked whether it is ready."""
        self._targets.append(target_of(url))

    def _beside(self) -> Coroutine[Any, Any, None]:
        return self._watch()

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
        task = self._begin(_forward(reader, writer, self._current))
        self._open[task] = self._current
        task.add_done_callback(self._open.pop)


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
        asyncio.create_task(pass_on(reader, far_writer)),
        asyncio.create_task(pass_on(far_reader, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        writer.transport.abort()
        far_writer.transport.abort()
