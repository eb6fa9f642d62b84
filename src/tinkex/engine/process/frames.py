"""Messages over a socket: each is a length, then that many bytes.

Every call into the system lets other threads of the process run, and a busy server has to wait for
its turn after each. So a message leaves in one call, and a small one arrives in one.
"""

from __future__ import annotations

import select
import struct
import time
from typing import Protocol

__all__ = ["FrameReader", "FrameSocket", "can_write", "write_frame"]


class FrameSocket(Protocol):
    """The methods that messages need of a socket; one thread may send while another receives."""

    def sendmsg(self, parts: list[bytes], /) -> int: ...

    def sendall(self, data: bytes | memoryview, /) -> None: ...

    def recv_into(self, buffer: memoryview, /) -> int: ...

    def fileno(self) -> int: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


_LENGTH = struct.Struct(">Q")
_AT_ONCE = 1 << 16


def write_frame(connection: FrameSocket, body: bytes) -> None:
    """Sends one message. The caller holds the lock if several threads send."""
    length = _LENGTH.pack(len(body))
    sent = connection.sendmsg([length, body])
    if sent < len(length):
        connection.sendall(length[sent:])
        sent = len(length)
    if sent < len(length) + len(body):
        connection.sendall(memoryview(body)[sent - len(length) :])


def can_write(connection: FrameSocket) -> bool:
    """Returns whether a small message could be sent without blocking. The caller holds the lock."""
    poll = select.poll()
    try:
        poll.register(connection, select.POLLOUT)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # closed
        return False


class FrameReader:
    """Reads the messages of a connection. For one thread.

    One longer than `max_bytes` ends them, as if the other side were gone. `heard_at` is when bytes
    came last, by the monotonic clock: also those of a message that is still on its way.
    """

    def __init__(self, connection: FrameSocket, max_bytes: int | None = None) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        self._read = memoryview(bytearray(_AT_ONCE))
        self._left = self._read[:0]  # read from the socket and not yet returned
        self.heard_at = 0.0

    def next(self) -> bytes | None:
        """Returns the next message, or None once the other side has closed."""
        prefix = self._take(_LENGTH.size)
        if prefix is None:
            return None
        (length,) = _LENGTH.unpack(prefix)
        if self._max_bytes is not None and length > self._max_bytes:
            return None
        return self._take(length)

    def _take(self, size: int) -> bytes | None:
        if size <= len(self._left):
            taken, self._left = bytes(self._left[:size]), self._left[size:]
            return taken
        whole = bytearray(size)
        view, done = memoryview(whole), len(self._left)
        view[:done] = self._left
        self._left = self._read[:0]
        while done < size:
            is_large = size - done >= _AT_ONCE
            into = view[done:] if is_large else self._read
            if not (count := self._receive(into)):
                return None
            if not is_large:
                used = min(count, size - done)
                view[done : done + used] = self._read[:used]
                self._left = self._read[used:count]
                count = used
            done += count
        return bytes(whole)

    def _receive(self, into: memoryview) -> int:
        try:
            count = self._connection.recv_into(into)
        except OSError:
            return 0
        if count:
            self.heard_at = time.monotonic()
        return count
