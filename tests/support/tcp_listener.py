"""A listener on a free port of 127.0.0.1 with an event loop in a thread of its own: what the
proxies of the tests have in common."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

__all__ = ["Target", "TcpListener", "free_port", "pass_on", "reset", "target_of"]

_PART_BYTES = 1 << 16

Target = tuple[str, int]


def free_port() -> int:
    """A port that nothing listens on, for a server that is started next."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class TcpListener:
    """Listens while the block runs. A subclass says what to do with a connection."""

    def __init__(self, name: str, *, max_line_bytes: int = 1 << 16) -> None:
        self._loop = asyncio.new_event_loop()
        self._max_line_bytes = max_line_bytes
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes a connection."""
        raise NotImplementedError

    def _beside(self) -> Coroutine[Any, Any, None] | None:
        """What runs beside the connections from the start, if anything."""
        return None

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Has something done beside all else; called in the loop."""
        task = self._loop.create_task(work)
        self._tasks.add(task)  # a task lives as long as there is a reference to it
        task.add_done_callback(self._tasks.discard)
        return task

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(
            self._accept, "127.0.0.1", 0, limit=self._max_line_bytes, backlog=1024
        )
        server = self._loop.run_until_complete(start)
        self.port = server.sockets[0].getsockname()[1]
        work = self._beside()
        if work is not None:
            self._begin(work)
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()


async def pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event | None = None
) -> None:
    """Passes bytes one way until either side ends; while `flows` is not set they wait."""
    with suppress(OSError):
        while part := await reader.read(_PART_BYTES):
            if flows is not None:
                await flows.wait()
            writer.write(part)
            await writer.drain()


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection as a crash does: unsent bytes are lost and the other side gets a reset."""
    sock = writer.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def target_of(url: str) -> Target:
    """Host and port of a URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
