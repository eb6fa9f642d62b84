"""A loopback HTTP server of minimal cost: reads one request, sends a fixed body.

Knows only Content-Length framing and keep-alive; enough to measure what an HTTP client costs.
Run as a script it prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys

ANSWER = b'{"request_id":"r-1","sample_sequence_ids":["s-1"]}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
WHOLE_ANSWER = HEAD % len(ANSWER) + ANSWER


class Echo(asyncio.Protocol):
    """Answers each complete request on one connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.head = bytearray()
        self.body_left = -1

    def data_received(self, data: bytes) -> None:
        if self.body_left >= 0:
            self._take_body(len(data))
            return
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if end < 0:
            return
        self.body_left = _content_length(bytes(self.head[:end]))
        rest = len(self.head) - end - 4
        self.head.clear()
        self._take_body(rest)

    def _take_body(self, size: int) -> None:
        self.body_left -= size
        if self.body_left <= 0:
            self.body_left = -1
            self.transport.write(WHOLE_ANSWER)


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
