"""An application on one of uvicorn's protocols, in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

Address = tuple[str, int]


@contextmanager
def serving(app: Any, protocol: type[asyncio.Protocol], **settings: Any) -> Iterator[Address]:
    """Where the application is served."""
    config = uvicorn.Config(
        app,
        http=protocol,
        log_config=None,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
        **settings,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[:2]
        finally:
            server.should_exit = True
            thread.join()
