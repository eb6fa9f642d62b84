"""The worker's side of a connection: reads calls, has the engine carry them out, sends replies.

Pings, and calls that return at once, are answered by the reading thread, even while the main
thread loads the models or computes; all others run on the main thread, in the order they came. One
that gives a future is answered when that is there, and the next begins meanwhile.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from tinkex import crashpoints
from tinkex.engine.errors import EngineError, EngineFailure, request_error
from tinkex.engine.interface import Engine
from tinkex.engine.process.codec import PING, EngineCall, Reply, argument_types, decode, encode
from tinkex.engine.process.frames import FrameReader, FrameSocket, write_frame
from tinkex.files.errors import StorageError

__all__ = ["CallServer", "CarryOut", "failed_reply"]

CarryOut = Callable[[Engine, str, tuple[Any, ...]], Any]
"""Calls a method by its name; returns the method's result."""

_LIGHT_CALLS = frozenset(
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


class CallServer:
    """Serves the calls of one connection. Two threads send, so every message leaves under a lock.

    `on_end` is called once by the reading thread when the connection has ended or is unreadable:
    with 0, or with 1 if it was for an error. A reply that is still computed then is dropped.
    If it returns, `serve` returns as well, once the call that runs has ended. `carry_out` makes a
    call to the engine with decoded arguments.
    """

    def __init__(
        self,
        connection: FrameSocket,
        frames: FrameReader,
        *,
        on_end: Callable[[int], None],
        carry_out: CarryOut | None = None,
    ) -> None:
        self._connection = connection
        self._frames = frames
        self._on_end = on_end
        self._carry_out = carry_out or _call
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._heavy: queue.SimpleQueue[EngineCall | None] = queue.SimpleQueue()
        self._has_ended = threading.Event()

    def start_reading(self) -> None:
        """Answers pings from now on, also before there is an engine."""
        threading.Thread(target=self._read_calls, daemon=True, name="calls").start()

    def serve(self, engine: Engine, trim_after_s: float) -> None:
        """Sends "ready" as reply 0, then answers calls on the calling thread until the connection
        ends.

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
            if call is None or self._has_ended.is_set():
                return
            wait_s = trim_after_s
            began = time.monotonic()
            reply = self._answer(engine, call)
            took_s = time.monotonic() - began
            if isinstance(reply, Future):
                reply.add_done_callback(partial(self._send_later, took_s))
            else:
                reply.seconds = took_s
                self.send(reply)

    def send(self, reply: Reply) -> None:
        """Sends a reply; drops it after the end of the connection."""
        body = encode(reply)
        with self._lock:
            try:
                write_frame(self._connection, body)
            except OSError:
                self._end(0)

    def _send_later(self, took_s: float, answered: Future[Reply]) -> None:
        try:
            reply = answered.result()
            reply.seconds = took_s
            self.send(reply)
        except BaseException as error:
            traceback.print_exception(error)
            self._end(1)  # or its caller would wait forever

    def _read_calls(self) -> None:
        code = 1
        try:
            while (frame := self._frames.next()) is not None:
                call: EngineCall = decode(frame, EngineCall)
                if call.method == PING.method:
                    self.send(Reply(call.call_id, None, _NOTHING))
                elif call.method in _LIGHT_CALLS:
                    assert self._engine is not None, "calls come after it was said to be ready"
                    reply = self._answer(self._engine, call)
                    assert isinstance(reply, Reply)
                    self.send(reply)
                else:
                    self._heavy.put(call)
            code = 0
        except Exception as error:
            traceback.print_exception(error)  # such as no memory for the call
        finally:
            self._end(code)

    def _answer(self, engine: Engine, call: EngineCall) -> Reply | Future[Reply]:
        """Returns the reply, or the future of it for a call that runs beside others."""
        try:
            arguments = decode(call.arguments, argument_types(call.method))
            crashpoints.passing("engine.call.before", call.method)
            value = self._carry_out(engine, call.method, arguments)
        except Exception as error:
            return failed_reply(call.call_id, error)
        if not isinstance(value, Future):
            return _carried_out(call, value)
        reply: Future[Reply] = Future()
        value.add_done_callback(lambda done: reply.set_result(_end_of(call, done)))
        return reply

    def _end(self, code: int) -> None:
        if not self._has_ended.is_set():
            self._has_ended.set()
            self._on_end(code)
            self._heavy.put(None)


def _call(engine: Engine, method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(engine, method)(*arguments)


def _end_of(call: EngineCall, done: Future[Any]) -> Reply:
    try:
        return _carried_out(call, done.result())
    except Exception as error:
        return failed_reply(call.call_id, error)


def _carried_out(call: EngineCall, value: object) -> Reply:
    crashpoints.passing("engine.call.after", call.method)
    return Reply(call.call_id, None, msgspec.Raw(encode(value)))


def failed_reply(call_id: int, error: Exception) -> Reply:
    """Returns the reply to a call that raised."""
    if not isinstance(error, EngineError | StorageError):
        traceback.print_exception(error)
        error = EngineFailure(f"Unexpected {type(error).__name__} in the engine: {error}")
    return Reply(call_id, request_error(error), _NOTHING)
