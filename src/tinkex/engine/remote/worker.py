"""A worker that connects to a server, serves its calls, and reconnects when it is cut off.

The base models stay loaded. All adapters and samplers of a server are dropped when its connection
ends.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tinkex.engine.interface import Engine
from tinkex.engine.process.call_server import CallServer
from tinkex.engine.process.frames import FrameReader, FrameSocket
from tinkex.engine.process.liveness import Silence
from tinkex.engine.remote.folder_calls import FolderCalls
from tinkex.engine.remote.handshake import (
    FolderPlace,
    HandshakeError,
    RefusedError,
    RemoteWorkerInfo,
    join,
    keep_alive,
)
from tinkex.engine.remote.tls import TlsConnection
from tinkex.files.depot_claim import claimed_by

__all__ = ["CannotSeeFoldersError", "DialConfig", "open_folders", "run_worker"]

_logger = logging.getLogger(__name__)

_DIAL_S = 10.0
_FIRST_WAIT_S = 0.5
_LOOK_S = 0.5
_LONGEST_WAIT_S = 3.0


class CannotSeeFoldersError(Exception):
    """The server keeps its folders where this worker cannot reach them."""


class DialConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The server's address, and the worker's folders."""

    host: str
    port: int
    token: bytes
    cache_dir: Path
    max_cache_bytes: int = 64 * 1024**3
    trim_after_s: float = 60.0


def run_worker(
    engine: Engine,
    info: RemoteWorkerInfo,
    config: DialConfig,
    stopping: threading.Event,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serves until `stopping` is set.

    Raises:
        RefusedError: the first server that answered refused this worker.
        CannotSeeFoldersError: its folders cannot be reached.
    """
    wait_s, has_joined = _FIRST_WAIT_S, False
    opened: dict[FolderPlace, FolderCalls] = {}  # kept, because they know their local copies
    while not stopping.is_set():
        try:
            connection, place = _dial(info, config, tls)
            if place not in opened:
                opened[place] = _open_or_hang_up(connection, place, config)
        except (RefusedError, CannotSeeFoldersError) as error:
            if not has_joined:
                raise
            _logger.error("%s", error)
        except (HandshakeError, OSError) as error:
            _logger.warning("%s:%d cannot be joined: %s", config.host, config.port, error)
        else:
            _logger.info("Joined %s:%d.", config.host, config.port)
            wait_s, has_joined = _FIRST_WAIT_S, True
            _serve(engine, connection, opened[place], config, place.silence_s, stopping)
            engine.reset()
            if not stopping.is_set():
                _logger.warning("The connection to the server has ended; reconnecting.")
        stopping.wait(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def open_folders(place: FolderPlace, config: DialConfig) -> FolderCalls:
    """Returns the handler of calls with folders, for the place where the server keeps them.

    Raises:
        CannotSeeFoldersError: this worker cannot reach them.
    """
    if place.depot is not None:
        from tinkex.depot.folder_cache import FolderCache
        from tinkex.depot.object_depot import ObjectDepot

        root = config.cache_dir / place.database_id
        return FolderCalls(root, FolderCache(ObjectDepot(place.depot), config.max_cache_bytes))
    root = Path(place.root)
    with contextlib.suppress(OSError):
        if claimed_by(root) == place.database_id:
            return FolderCalls(root, None)
    raise CannotSeeFoldersError(
        f"The server keeps checkpoints in its folder {root}, which this machine cannot read. "
        "Start the server with --depot: a folder that both can read, or an object store."
    )


def _open_or_hang_up(
    connection: FrameSocket, place: FolderPlace, config: DialConfig
) -> FolderCalls:
    try:
        return open_folders(place, config)
    except BaseException:
        connection.close()
        raise


def _dial(
    info: RemoteWorkerInfo, config: DialConfig, tls: ssl.SSLContext | None
) -> tuple[FrameSocket, FolderPlace]:
    """Joins the first address of the host that answers as a server.

    A name may have the addresses of a leader and its standby. A frozen server still accepts
    connections, so an address counts only once its server has answered.
    """
    found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    for number, address in enumerate(addresses, start=1):
        try:
            return _dial_address(address, info, config, tls)
        except RefusedError:
            raise
        except (HandshakeError, OSError) as error:
            if number == len(addresses):
                raise
            _logger.info("%s:%d does not answer: %s", address, config.port, error)
    raise OSError(f"{config.host} has no address")


def _dial_address(
    address: str,
    info: RemoteWorkerInfo,
    config: DialConfig,
    tls: ssl.SSLContext | None,
) -> tuple[FrameSocket, FolderPlace]:
    raw = socket.create_connection((address, config.port), timeout=_DIAL_S)
    try:
        keep_alive(raw)
        connection: FrameSocket = raw
        if tls is not None:
            connection = TlsConnection(raw, tls, server_name=config.host)
        place = join(connection, config.token, info)
        raw.settimeout(None)
        return connection, place
    except BaseException:
        raw.close()
        raise


def _serve(
    engine: Engine,
    connection: FrameSocket,
    folders: Callable[..., object],
    config: DialConfig,
    silence_s: float,
    stopping: threading.Event,
) -> None:
    """Serves one connection to its end; `stopping` ends it from this side.

    Silence of a server that has pinged before ends it too: a frozen server closes no connection,
    and another one may be the leader by then. A server that has not pinged yet does not need this
    worker so far.
    """
    has_ended = threading.Event()
    frames = FrameReader(connection)
    server = CallServer(
        connection,
        frames,
        on_end=lambda _: has_ended.set(),
        carry_out=folders,
    )

    def hang_up_in_time() -> None:
        silence = Silence(_LOOK_S, time.monotonic())
        while not has_ended.is_set():
            is_stopping = stopping.wait(_LOOK_S)
            silent_s = silence.look(time.monotonic(), frames.heard_at) if frames.heard_at else 0.0
            if silent_s > silence_s:
                _logger.warning(
                    "The server has been silent for %.0f s; closing the connection.", silent_s
                )
            if is_stopping or silent_s > silence_s:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                return

    threading.Thread(target=hang_up_in_time, daemon=True, name="worker-hang-up").start()
    server.start_reading()
    server.serve(engine, config.trim_after_s)
    connection.close()
