"""An engine as a process of its own: `python -m tinkex.engine.process.worker --fd N`.

Started by `tinkex.engine.process.spawn`, never by hand. Answers calls over an inherited socket, and
ends when the other side does: a process that only seems alive is worse than none.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import signal
import socket
import threading
from contextlib import suppress

from tinkex import crashpoints
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import Engine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.call_server import CallServer, failed_reply
from tinkex.engine.process.codec import decode
from tinkex.engine.process.frames import FrameReader

__all__ = ["build_engine", "main"]


def main() -> None:
    """Builds the engine of the first message's options, then serves until the socket closes."""
    parser = argparse.ArgumentParser(prog="python -m tinkex.engine.process.worker")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to serve")
    parser.add_argument("--with-torch", action="store_true", help="import torch before all else")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    connection = socket.socket(fileno=arguments.fd)
    # Ctrl-C in a terminal reaches the whole process group; the parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Imports make a great many objects that all stay: to look for garbage among them takes a
    # tenth of the start.
    gc.disable()
    if arguments.with_torch:
        with suppress(ImportError):  # the error is reported when the engine is built
            importlib.import_module("tinkex.engine.torch_engine")
    frames = FrameReader(connection)
    first = frames.next()
    if first is None:
        return
    server = CallServer(connection, frames, on_end=os._exit)
    server.start_reading()
    try:
        options: EngineOptions = decode(first, EngineOptions)
        crashpoints.arm(options.crash_at, is_engine=True)
        crashpoints.passing("engine.start.before")
        engine = build_engine(options)
        crashpoints.passing("engine.start.after")
    except Exception as error:
        server.send(failed_reply(0, error))
        return
    gc.freeze()
    gc.enable()
    server.serve(engine, options.trim_after_s)


def build_engine(options: EngineOptions) -> Engine:
    """Builds the engine that the options describe; torch is imported only if it is needed.

    Raises:
        EngineUserError: no engine can be built from them, now or later.
    """
    kind, _, delay = options.device.partition(":")
    if kind == "null":
        from tinkex.engine.loss_plugins import load_losses
        from tinkex.engine.null import NullEngine

        return NullEngine(
            tuple(options.models),
            delay_s=_seconds(delay or "0", options.device),
            losses=load_losses(options.losses),
        )
    try:
        from tinkex.engine.torch_engine import TorchEngine
    except ImportError as error:
        raise EngineUserError(
            f"A package the engine needs cannot be imported: {error}. Install the server's "
            "packages, with a build of PyTorch for this machine.",
            code="missing-package",
        ) from error
    return TorchEngine(options)


def _seconds(text: str, device: str) -> float:
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < threading.TIMEOUT_MAX:
            return seconds
    raise EngineUserError(
        f"device={device!r} does not say how long a call takes. Write null, or null:0.05 for 0.05 "
        "seconds.",
        code="bad-device",
        field="device",
        value=device,
    )


if __name__ == "__main__":
    main()
