"""The process of a worker that dials in: `python -m tinkex.engine.remote.main SETTINGS`.

Started by `tinkex worker`, which gives it the environment that an engine needs from its first
moment. SETTINGS is JSON; secrets are in the file that it names.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import ssl
import sys
import threading
from pathlib import Path

import msgspec

from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import ROLES, Role
from tinkex.engine.model.folder_digest import folder_digest
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.worker import build_engine
from tinkex.engine.remote.cache_dir import own_cache_dir
from tinkex.engine.remote.handshake import RefusedError, RemoteWorkerInfo
from tinkex.engine.remote.worker import CannotSeeFoldersError, DialConfig, run_worker

__all__ = ["WorkerSettings", "main", "read_token"]

_MIN_TOKEN_BYTES = 16


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a worker, and the server it connects to."""

    options: EngineOptions
    host: str
    port: int
    name: str
    token_file: str
    cache_dir: str
    roles: tuple[Role, ...] = ROLES
    tls_ca: str | None = None  # a file of certificates; "" for those of the system
    max_cache_bytes: int = 64 * 1024**3


def main() -> None:
    """Loads the models, then serves until a signal."""
    settings = msgspec.json.decode(sys.argv[1], type=WorkerSettings)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        with own_cache_dir(Path(settings.cache_dir)) as cache_dir:
            _run(settings, cache_dir, stopping)
    except (EngineUserError, RefusedError, CannotSeeFoldersError, OSError, ValueError) as error:
        sys.stderr.write(f"tinkex worker: {error}\n")
        sys.exit(2)
    logging.info("Stopped.")


def read_token(path: Path) -> bytes:
    """Reads the token: the first word of the file's first line, in hex.

    Raises:
        ValueError: the file has none.
    """
    first = (path.read_text(encoding="utf-8").split() or [""])[0]
    try:
        token = bytes.fromhex(first)
    except ValueError:
        token = b""
    if len(token) < _MIN_TOKEN_BYTES:
        raise ValueError(f"{path} holds no token. Copy worker-token from the server's data folder.")
    return token


def _run(settings: WorkerSettings, cache_dir: Path, stopping: threading.Event) -> None:
    config = DialConfig(
        host=settings.host,
        port=settings.port,
        token=read_token(Path(settings.token_file)),
        cache_dir=cache_dir,
        max_cache_bytes=settings.max_cache_bytes,
        trim_after_s=settings.options.trim_after_s,
    )
    tls = None if settings.tls_ca is None else _tls_context(settings.tls_ca)
    engine = build_engine(settings.options)
    info = RemoteWorkerInfo(
        name=settings.name,
        host=socket.gethostname(),
        pid=os.getpid(),
        models={
            name: folder_digest(Path(folder)) if folder else ""
            for name, folder in settings.options.models.items()
        },
        fingerprint=engine.fingerprint(),
        roles=settings.roles,
    )
    run_worker(engine, info, config, stopping, tls)


def _tls_context(authorities: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authorities or None)


if __name__ == "__main__":
    main()
