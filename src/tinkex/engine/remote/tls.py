"""A TLS connection that one thread reads and others write.

An `ssl.SSLSocket` must not be used by two threads at once. Here the TLS state has a lock of its
own, which is never held while waiting for the network.
"""

from __future__ import annotations

import socket
import ssl
import threading

__all__ = ["TlsConnection"]

_READ_BYTES = 1 << 16
_CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class TlsConnection:
    """The connection of a socket, encrypted. Its handshake is done when the constructor returns.

    Raises:
        OSError: the peer is not trusted, does not speak TLS or closed the connection
            (`ssl.SSLError` is an OSError).
    """

    def __init__(
        self,
        raw: socket.socket,
        context: ssl.SSLContext,
        *,
        server_name: str | None = None,
    ) -> None:
        self._raw = raw
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._in, self._out, server_side=server_name is None, server_hostname=server_name
        )
        self._state = threading.Lock()  # of the TLS object and its buffers
        self._sending = threading.Lock()  # keeps records in the order they were made
        self._shake_hands()

    def sendmsg(self, parts: list[bytes], /) -> int:
        """Sends all of the parts; returns their size in bytes."""
        whole = b"".join(parts)
        self.sendall(whole)
        return len(whole)

    def sendall(self, data: bytes | memoryview, /) -> None:
        """Sends the data."""
        view = memoryview(data)
        with self._sending:
            while view:
                with self._state:
                    view = view[self._tls.write(view) :]
                    records = self._out.read()
                self._raw.sendall(records)

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receives into the buffer; returns the number of bytes, at least one, or 0 at the end."""
        while True:
            try:
                with self._state:
                    return int(self._tls.read(len(buffer), buffer))
            except ssl.SSLWantReadError:
                pass
            except _CLOSED:
                return 0
            self._flush()  # an answer to a change of keys
            if not self._receive():
                return 0

    def fileno(self) -> int:
        """The handle of the socket."""
        return self._raw.fileno()

    def settimeout(self, timeout_s: float | None) -> None:
        """Sets the seconds that one wait for the network may last."""
        self._raw.settimeout(timeout_s)

    def shutdown(self, how: int, /) -> None:
        """Shuts down both directions; a thread that waits in `recv_into` returns."""
        self._raw.shutdown(how)

    def close(self) -> None:
        """Frees the socket."""
        self._raw.close()

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
                self._flush()
                return
            except ssl.SSLWantReadError:
                self._flush()
                if not self._receive():
                    raise ConnectionResetError(
                        "it closed the connection during the TLS handshake"
                    ) from None
            except ssl.SSLError:
                self._flush()  # sends the TLS alert, which says why
                raise

    def _flush(self) -> None:
        with self._sending:
            with self._state:
                records = self._out.read()
            if records:
                self._raw.sendall(records)

    def _receive(self) -> bool:
        data = self._raw.recv(_READ_BYTES)
        with self._state:
            if data:
                self._in.write(data)
            else:
                self._in.write_eof()
        return bool(data)
