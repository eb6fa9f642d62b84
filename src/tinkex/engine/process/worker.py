"""An engine as a process of its own: `python -m tinkex.engine.process.worker --fd N`.

Started by `tinkex.engine.process.spawn`, never by hand. Reads calls from an inherited
socket. Pings, and calls that return at once, are answered by the reading thread, even while the
main thread loads the models or computes; all others run on the main thread, in the order they came.
One that gives a future is answered when that is there, and the next begins meanwhile. The process
ends when the other side does.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import queue
import signal
import socket
import threading
import time
import traceback
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from tinkex import crashpoints
from tinkex.engine.errors import EngineError, EngineFailure, EngineUserError, request_error
from tinkex.engine.interface import Engine
from tinkex.engine.options import EngineOptions
from tinkex.engine.process.codec import PING, EngineCall, Reply, argument_types, decode, encode
from tinkex.engine.process.frames import FrameReader, write_frame
from tinkex.files.errors import StorageError

__all__ = ["LIGHT_CALLS", "build_engine", "main"]

LIGHT_CALLS = frozenset(
    {
        "fingerprint",
        "models",
        "adapters",
        "submit_sample",
        "submit_samples",
        "cancel_sample",
        "check_fits",
    }
)
_NOTHING = msgspec.Raw(encode(None))


def main() -> None:
    """Builds the engine the first message describes, then serves calls until the socket closes."""
    parser = argparse.ArgumentParser(prog="python -m tinkex.engine.process.worker")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to serve")
    parser.add_argument("--with-torch", action="store_true", help="import torch before all else")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    connection = socket.socket(fileno=arguments.fd)
    # Ctrl-C in a terminal reaches the whole group; when to stop is the parent's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Imports make a great many objects that all stay: to look for garbage among them takes a
    # tenth of the start.
    gc.disable()
    if arguments.with_torch:
        with suppress(ImportError):  # it is said when the engine is built
            importlib.import_module("tinkex.engine.torch_engine")
    frames = FrameReader(connection)
    first = frames.next()
    if first is None:
        return
    server = _Server(connection, frames)
    server.start_reading()
    try:
        options: EngineOptions = decode(first, EngineOptions)
        crashpoints.arm(options.crash_at, is_engine=True)
        crashpoints.passing("engine.start.before")
        engine = build_engine(options)
        crashpoints.passing("engine.start.after")
    except Exception as error:
        server.send(_failed(0, error))
        return
    gc.freeze()
    gc.enable()
    server.serve(engine, options.trim_after_s)


def build_engine(options: EngineOptions) -> Engine:
    """The engine the options describe; torch is imported only if it is needed.

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


class _Server:
    """The calls of one connection. Two threads send, so every message leaves under a lock."""

    def __init__(self, connection: socket.socket, frames: FrameReader) -> None:
        self._connection = connection
        self._frames = frames
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._heavy: queue.SimpleQueue[EngineCall] = queue.SimpleQueue()

    def start_reading(self) -> None:
        """Answers pings from here on, also while there is no engine yet."""
        threading.Thread(target=self._read_calls, daemon=True, name="calls").start()

    def serve(self, engine: Engine, trim_after_s: float) -> None:
        """Says "ready" with reply 0, then answers calls on the calling thread, for ever.

        Whenever no call has come for `trim_after_s`, the engine is trimmed, once.
        """
        self._engine = engine
        self.send(Reply(0, None, _NOTHING))
        wait_s: float | None = trim_after_s
        while True:
            try:
                call = self._heavy.get(timeout=wait_s)
            except queue.Empty:
                engine.trim()
                wait_s = None
                continue
            wait_s = trim_after_s
            began = time.monotonic()
            reply = _answer(engine, call)
            took_s = time.monotonic() - began
            if isinstance(reply, Future):
                reply.add_done_callback(partial(self._send_later, took_s))
            else:
                reply.seconds = took_s
                self.send(reply)

    def send(self, reply: Reply) -> None:
        body = encode(reply)
        with self._lock:
            write_frame(self._connection, body)

    def _send_later(self, took_s: float, answered: Future[Reply]) -> None:
        try:
            reply = answered.result()
            reply.seconds = took_s
            self.send(reply)
        except BaseException as error:
            traceback.print_exception(error)
            os._exit(1)  # its caller must not wait for ever

    def _read_calls(self) -> None:
        code = 1
        try:
            while (frame := self._frames.next()) is not None:
                call: EngineCall = decode(frame, EngineCall)
                if call.method == PING.method:
                    self.send(Reply(call.call_id, None, _NOTHING))
                elif call.method in LIGHT_CALLS:
                    assert self._engine is not None, "calls come after it was said to be ready"
                    reply = _answer(self._engine, call)
                    assert isinstance(reply, Reply)
                    self.send(reply)
                else:
                    self._heavy.put(call)
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0  # it left while it was being answered
        except Exception as error:
            traceback.print_exception(error)  # such as no memory for the call
        finally:
            # The other side is gone, or cannot be heard any more: no caller would get what the main
            # thread may still be computing, and a process that only seems alive is worse than none.
            os._exit(code)


def _answer(engine: Engine, call: EngineCall) -> Reply | Future[Reply]:
    """The reply, or, to a call that goes on beside others, the future of it."""
    try:
        arguments = decode(call.arguments, argument_types(call.method))
        crashpoints.passing("engine.call.before", call.method)
        value = getattr(engine, call.method)(*arguments)
    except Exception as error:
        return _failed(call.call_id, error)
    if not isinstance(value, Future):
        return _carried_out(call, value)
    reply: Future[Reply] = Future()
    value.add_done_callback(lambda done: reply.set_result(_end_of(call, done)))
    return reply


def _end_of(call: EngineCall, done: Future[Any]) -> Reply:
    try:
        return _carried_out(call, done.result())
    except Exception as error:
        return _failed(call.call_id, error)


def _carried_out(call: EngineCall, value: object) -> Reply:
    crashpoints.passing("engine.call.after", call.method)
    return Reply(call.call_id, None, msgspec.Raw(encode(value)))


def _failed(call_id: int, error: Exception) -> Reply:
    if not isinstance(error, EngineError | StorageError):
        traceback.print_exception(error)
        error = EngineFailure(f"Unexpected {type(error).__name__} in the engine: {error}")
    return Reply(call_id, request_error(error), _NOTHING)


if __name__ == "__main__":
    main()
