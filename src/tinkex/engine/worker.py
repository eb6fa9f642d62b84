"""An engine as a process of its own: `python -m tinkex.engine.worker --fd N`.

Started by `tinkex.engine.begun_worker`, never by hand. Reads calls from an inherited
socket. Calls that return at once are answered by the reading thread, even while the main thread
computes; all others run on the main thread, in the order they came. One that gives a future is
answered when that is there, and the next begins meanwhile. The process ends when the other side
does.
"""

from __future__ import annotations

import argparse
import importlib
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
from tinkex.engine.codec import Call, Reply, argument_types, decode, encode
from tinkex.engine.errors import EngineError, EngineFailure
from tinkex.engine.frames import FrameReader, write_frame
from tinkex.engine.interface import Engine
from tinkex.engine.options import EngineOptions

__all__ = ["LIGHT_CALLS", "build_engine", "main", "serve"]

LIGHT_CALLS = frozenset(
    {"models", "adapters", "submit_sample", "submit_samples", "cancel_sample", "check_fits"}
)


def main() -> None:
    """Builds the engine the first message describes, then serves calls until the socket closes."""
    parser = argparse.ArgumentParser(prog="python -m tinkex.engine.worker")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to serve")
    parser.add_argument("--with-torch", action="store_true", help="import torch before all else")
    arguments = parser.parse_args()
    connection = socket.socket(fileno=arguments.fd)
    # Ctrl-C in a terminal reaches the whole group; when to stop is the parent's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if arguments.with_torch:
        with suppress(ImportError):  # it is said when the engine is built
            importlib.import_module("tinkex.engine.torch_engine")
    frames = FrameReader(connection)
    first = frames.next()
    if first is None:
        return
    try:
        options: EngineOptions = decode(first, EngineOptions)
        crashpoints.arm(options.crash_at, is_engine=True)
        crashpoints.passing("engine.start.before")
        engine = build_engine(options)
        crashpoints.passing("engine.start.after")
    except Exception as error:
        _send(connection, threading.Lock(), _failed(0, error))
        return
    serve(engine, connection, frames)


def build_engine(options: EngineOptions) -> Engine:
    """The engine the options describe; torch is imported only if it is needed."""
    kind, _, delay = options.device.partition(":")
    if kind == "null":
        from tinkex.engine.null import NullEngine

        return NullEngine(tuple(options.models), delay_s=float(delay or 0))
    from tinkex.engine.torch_engine import TorchEngine

    return TorchEngine(options)


def serve(engine: Engine, connection: socket.socket, frames: FrameReader) -> None:
    """Says "ready" with reply 0, then answers calls on the calling thread."""
    heavy: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
    lock = threading.Lock()
    _send(connection, lock, Reply(0, None, msgspec.Raw(encode(None))))
    reader = threading.Thread(
        target=_read_calls,
        args=(engine, connection, frames, heavy, lock),
        daemon=True,
        name="calls",
    )
    reader.start()
    while (call := heavy.get()) is not None:
        began = time.monotonic()
        reply = _answer(engine, call)
        took_s = time.monotonic() - began
        if isinstance(reply, Future):
            reply.add_done_callback(partial(_send_later, connection, lock, took_s))
        else:
            reply.seconds = took_s
            _send(connection, lock, reply)


def _send_later(
    connection: socket.socket, lock: threading.Lock, took_s: float, answered: Future[Reply]
) -> None:
    try:
        reply = answered.result()
        reply.seconds = took_s
        _send(connection, lock, reply)
    except BaseException as error:
        traceback.print_exception(error)
        os._exit(1)  # whoever waits for it must not wait for ever


def _read_calls(
    engine: Engine,
    connection: socket.socket,
    frames: FrameReader,
    heavy: queue.SimpleQueue[Call | None],
    lock: threading.Lock,
) -> None:
    code = 1
    try:
        while (frame := frames.next()) is not None:
            call: Call = decode(frame, Call)
            if call.method in LIGHT_CALLS:
                reply = _answer(engine, call)
                assert isinstance(reply, Reply)
                _send(connection, lock, reply)
            else:
                heavy.put(call)
        code = 0
    except Exception as error:
        traceback.print_exception(error)  # such as no memory for the call
    finally:
        # The other side is gone, or cannot be heard any more: nobody would get what the main
        # thread may still be computing, and a process that only seems alive is worse than none.
        os._exit(code)


def _answer(engine: Engine, call: Call) -> Reply | Future[Reply]:
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


def _end_of(call: Call, done: Future[Any]) -> Reply:
    try:
        return _carried_out(call, done.result())
    except Exception as error:
        return _failed(call.call_id, error)


def _carried_out(call: Call, value: object) -> Reply:
    crashpoints.passing("engine.call.after", call.method)
    return Reply(call.call_id, None, msgspec.Raw(encode(value)))


def _failed(call_id: int, error: Exception) -> Reply:
    if not isinstance(error, EngineError):
        traceback.print_exception(error)
        error = EngineFailure(f"Unexpected {type(error).__name__} in the engine: {error}")
    return Reply(call_id, error.to_request_error(), msgspec.Raw(encode(None)))


def _send(connection: socket.socket, lock: threading.Lock, reply: Reply) -> None:
    body = encode(reply)
    with lock:
        write_frame(connection, body)


if __name__ == "__main__":
    main()
