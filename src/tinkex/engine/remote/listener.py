"""The port that remote workers connect to: accepts connections, checks proofs, queues workers.

A connection without proof is given ten seconds and 64 KiB; at most 32 of them are open.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import ssl
import threading
from collections.abc import Callable
from typing import NamedTuple

from tinkex.engine.process.frames import FrameSocket
from tinkex.engine.remote.handshake import (
    FolderPlace,
    HandshakeError,
    RemoteWorkerInfo,
    answer,
    greet,
    keep_alive,
    refuse,
)
from tinkex.engine.remote.tls import TlsConnection

__all__ = ["JoinedWorker", "WorkerListener"]

_logger = logging.getLogger(__name__)

_HANDSHAKE_S = 10.0
_MAX_STRANGERS = 32


class JoinedWorker(NamedTuple):
    """An authenticated worker that waits for calls."""

    connection: FrameSocket
    info: RemoteWorkerInfo
    address: str


class WorkerListener:
    """Listens until closed. `check` returns why a worker is refused, or None."""

    def __init__(
        self,
        address: tuple[str, int],
        token: bytes,
        place: FolderPlace,
        *,
        check: Callable[[RemoteWorkerInfo], str | None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._token = token
        self._place = place
        self._check = check
        self._tls = tls
        self._joined: queue.SimpleQueue[JoinedWorker] = queue.SimpleQueue()
        self._strangers = threading.Semaphore(_MAX_STRANGERS)
        self._is_closed = False
        self._socket = socket.create_server(address, backlog=64)
        self._thread = threading.Thread(target=self._accept, daemon=True, name="tinkex-listener")
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def take(self, timeout_s: float) -> JoinedWorker | None:
        """Returns the worker that has waited longest; None if none came within the timeout."""
        try:
            return self._joined.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stops listening, and disconnects workers that still wait."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()
        self._thread.join()
        self._hang_up_on_waiting()

    def _hang_up_on_waiting(self) -> None:
        while (worker := self.take(0)) is not None:
            worker.connection.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                raw, (host, port, *_) = self._socket.accept()
            except OSError as error:
                if not self._is_closed:
                    _logger.error("No worker can dial in for the moment: %s", error)
                    threading.Event().wait(1.0)
                continue
            if not self._strangers.acquire(blocking=False):
                raw.close()
                continue
            threading.Thread(
                target=self._receive, args=[raw, f"{host}:{port}"], daemon=True, name="tinkex-hello"
            ).start()

    def _receive(self, raw: socket.socket, address: str) -> None:
        # The socket's own timeout begins anew with every byte that comes.
        deadline = threading.Timer(_HANDSHAKE_S, _hang_up, [raw])
        deadline.daemon = True
        deadline.start()
        try:
            raw.settimeout(_HANDSHAKE_S)
            connection: FrameSocket = raw if self._tls is None else TlsConnection(raw, self._tls)
            greeting = greet(connection, self._token)
            info = greeting.info
            reason = self._check(info)
            if reason is not None:
                _logger.warning("The worker %s from %s is refused: %s", info.name, address, reason)
                refuse(connection, reason)
                raw.close()
                return
            keep_alive(raw)
            answer(connection, self._token, greeting, self._place)
            deadline.cancel()
            raw.settimeout(None)
            _logger.info("The worker %s has joined from %s.", info.name, address)
            self._joined.put(JoinedWorker(connection, info, address))
            if self._is_closed:
                self._hang_up_on_waiting()
        except (HandshakeError, OSError) as error:
            _logger.warning("A connection from %s did not become a worker: %s", address, error)
            raw.close()
        finally:
            deadline.cancel()
            self._strangers.release()


def _hang_up(raw: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        raw.shutdown(socket.SHUT_RDWR)
