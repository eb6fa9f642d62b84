"""The client side of an engine in a worker: the engine's interface over a connection.

Calls may come from any thread and block until answered. If the worker is lost, or does not answer
pings for too long, every open and later call raises `EngineFailure`; start a new one and bring its
adapters back from their saved state.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import msgspec

from tinkex.engine.errors import EngineFailure, EngineUserError
from tinkex.engine.interface import (
    AdapterInfo,
    EngineFingerprint,
    LoraSpec,
    ModelInfo,
    OptimRequest,
    OptimResult,
    RequestError,
    SampleRequest,
    SamplingProgress,
    StateScope,
    TrainRequest,
    TrainResult,
)
from tinkex.engine.process.codec import PING, EngineCall, Reply, decode, encode, result_type
from tinkex.engine.process.frames import FrameReader, FrameSocket, can_write, write_frame
from tinkex.engine.process.liveness import HANG_S, PING_S, Pinger

__all__ = ["STOP_TIMEOUT_S", "EngineClient"]

_logger = logging.getLogger(__name__)

_PING_BODY = encode(PING)
_START_SILENCE_S = 300.0  # a cold import of torch can hold the interpreter's lock for long
STOP_TIMEOUT_S = 5.0
"""Seconds that closing waits for a worker or a thread to end."""

_COUNTED_AFTER_S = 0.5  # an open call counts as computation once it is older than this


class _Open(NamedTuple):
    """A call that is not answered yet."""

    answer: Future[Reply]
    since: float
    is_background: bool  # the worker does other things meanwhile


class EngineClient(ABC):
    """An engine at the other end of a connection. Returns once the engine is ready.

    `greeting` is sent first. The worker is pinged every `ping_s` seconds. One that is silent for
    `hang_s` is killed and fails with the code `engine-hung`; while it starts it may be silent for
    five minutes. How the worker itself is ended is up to the subclass.

    Raises:
        EngineUserError: the engine cannot be built.
        EngineFailure: the worker was lost while it started.
    """

    def __init__(
        self,
        connection: FrameSocket,
        greeting: bytes,
        *,
        ping_s: float = PING_S,
        hang_s: float = HANG_S,
        max_frame_bytes: int | None = None,
    ) -> None:
        self._connection = connection
        self._busy_seconds = 0.0  # on calls that were answered
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._is_gone = False
        self._is_ready = False
        self._hung_s: float | None = None
        self._frames = FrameReader(self._connection, max_frame_bytes)
        self._pinger = Pinger(
            ping_s=ping_s,
            limit_s=lambda: hang_s if self._is_ready else max(hang_s, _START_SILENCE_S),
            ping=self._ping,
            heard_at=lambda: self._frames.heard_at,
            on_hang=self._end_hung,
        )
        ready = self._expect(0)
        self._reader = threading.Thread(
            target=self._read_replies, daemon=True, name="engine-replies"
        )
        self._reader.start()
        self._send(greeting)
        self._pinger.start()
        try:
            _raise_error(ready.result())
        except BaseException:
            self.close()
            raise
        self._is_ready = True

    @property
    def is_gone(self) -> bool:
        """Whether the worker's side of the connection has closed."""
        return self._is_gone

    @property
    def silent_seconds(self) -> float:
        """Seconds for which pings have gone unanswered; 0 while they are answered."""
        return self._pinger.silent_s

    @property
    def busy_seconds(self) -> float:
        """Seconds for which the worker has computed, by its own clock.

        A call without a reply counts once it has been open for long: a busy process may read a
        reply a moment late, and that moment is no computation.
        """
        with self._lock:
            oldest = next((each for each in self._open.values() if not each.is_background), None)
        out_s = 0.0 if oldest is None else time.monotonic() - oldest.since
        return self._busy_seconds + (out_s if out_s > _COUNTED_AFTER_S else 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, which the worker notices, and ends the worker if this
        process started it."""
        self._pinger.stop()
        self._hang_up()
        self._end_worker()
        self._reader.join(STOP_TIMEOUT_S)
        self._connection.close()

    def fingerprint(self) -> EngineFingerprint:
        return cast("EngineFingerprint", self._call("fingerprint"))

    def models(self) -> list[ModelInfo]:
        return cast("list[ModelInfo]", self._call("models"))

    def adapters(self) -> list[AdapterInfo]:
        return cast("list[AdapterInfo]", self._call("adapters"))

    def create_adapter(self, adapter_id: str, model: str, spec: LoraSpec) -> AdapterInfo:
        return cast("AdapterInfo", self._call("create_adapter", adapter_id, model, spec))

    def save_adapter(self, adapter_id: str, folder: Path, scope: StateScope = "weights") -> int:
        return cast("int", self._call("save_adapter", adapter_id, folder, scope))

    def start_saving(self, adapter_id: str, folder: Path, scope: StateScope) -> Future[int]:
        method = "start_saving"
        saved: Future[int] = Future()
        answer = self._start_call(method, adapter_id, folder, scope, is_background=True)
        answer.add_done_callback(lambda done: _pass_on(method, done, saved))
        return saved

    def load_adapter(
        self, adapter_id: str, model: str, folder: Path, scope: StateScope = "weights"
    ) -> AdapterInfo:
        return cast("AdapterInfo", self._call("load_adapter", adapter_id, model, folder, scope))

    def unload_adapter(self, adapter_id: str) -> None:
        self._call("unload_adapter", adapter_id)

    def forward_backward(self, batch: list[TrainRequest]) -> list[TrainResult | RequestError]:
        return cast("list[TrainResult | RequestError]", self._call("forward_backward", batch))

    def optim_step(self, batch: list[OptimRequest]) -> list[OptimResult | RequestError]:
        return cast("list[OptimResult | RequestError]", self._call("optim_step", batch))

    def snapshot(self, adapter_id: str, sampler_id: str) -> None:
        self._call("snapshot", adapter_id, sampler_id)

    def load_sampler(self, sampler_id: str, model: str, folder: Path) -> None:
        self._call("load_sampler", sampler_id, model, folder)

    def unload_sampler(self, sampler_id: str) -> None:
        self._call("unload_sampler", sampler_id)

    def submit_sample(self, request: SampleRequest) -> None:
        self._call("submit_sample", request)

    def submit_samples(self, batch: list[SampleRequest]) -> list[RequestError | None]:
        try:
            return cast("list[RequestError | None]", self._call("submit_samples", batch))
        except EngineUserError as error:  # one of them cannot be encoded: find out which
            if len(batch) == 1:
                return [error.to_request_error()]
            return [answer for each in batch for answer in self.submit_samples([each])]

    def cancel_sample(self, request_id: str) -> None:
        self._call("cancel_sample", request_id)

    def step_sampling(self, budget_s: float = 0.05) -> SamplingProgress:
        return cast("SamplingProgress", self._call("step_sampling", budget_s))

    def check_fits(self, request: TrainRequest | SampleRequest) -> None:
        self._call("check_fits", request)

    def reset(self) -> None:
        self._call("reset")

    def trim(self) -> None:
        self._call("trim")

    def _call(self, method: str, *arguments: object) -> Any:
        return _value(method, self._start_call(method, *arguments).result())

    def _start_call(
        self, method: str, *arguments: object, is_background: bool = False
    ) -> Future[Reply]:
        call_id = next(self._ids)
        try:
            body = encode(EngineCall(call_id, method, msgspec.Raw(encode(arguments))))
        except OverflowError as error:
            raise EngineUserError(
                "A whole number in the request does not fit 64 bits. Use a smaller one.",
                code="number-too-large",
            ) from error
        answer = self._expect(call_id, is_background=is_background)
        self._send(body)
        return answer

    def _expect(self, call_id: int, *, is_background: bool = False) -> Future[Reply]:
        answer: Future[Reply] = Future()
        with self._lock:
            if self._is_gone:
                raise self._lost(self._hung_s)
            self._open[call_id] = _Open(answer, time.monotonic(), is_background)
        return answer

    def _send(self, body: bytes) -> None:
        with self._send_lock:
            try:
                write_frame(self._connection, body)
            except OSError:
                # The reader gets the same error and fails every open call, this one among them.
                return

    def _ping(self) -> None:
        """Sends a ping unless sending would block: behind another message, or on a full buffer."""
        if self._send_lock.acquire(blocking=False):
            try:
                if can_write(self._connection):
                    with contextlib.suppress(OSError):  # the reader gets the same error
                        write_frame(self._connection, _PING_BODY)
            finally:
                self._send_lock.release()

    def _end_hung(self, silent_s: float) -> None:
        """Ends a worker that does not answer pings."""
        self._hung_s = silent_s
        self._kill_worker()
        self._hang_up()

    @abstractmethod
    def _kill_worker(self) -> None:
        """Kills the worker, if this process started it."""

    @abstractmethod
    def _end_worker(self) -> None:
        """Waits until the worker has ended, if this process started it."""

    @abstractmethod
    def _lost(self, hung_s: float | None) -> EngineFailure:
        """Returns the error for calls after the loss; `hung_s`: seconds of silence before it."""

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the other side may be gone already
            self._connection.shutdown(socket.SHUT_RDWR)

    def _read_replies(self) -> None:
        try:
            while (frame := self._frames.next()) is not None:
                reply: Reply = decode(frame, Reply)
                if reply.call_id == PING.call_id:
                    continue
                self._busy_seconds += reply.seconds
                with self._lock:
                    answer = self._open.pop(reply.call_id).answer
                answer.set_result(reply)
        except (msgspec.MsgspecError, KeyError) as error:
            _logger.error("A worker sent a malformed reply and is ended: %r", error)
        finally:  # also without memory for a reply: no caller may wait forever
            self._fail_open_calls()

    def _fail_open_calls(self) -> None:
        self._hang_up()
        with self._lock:
            self._is_gone = True
            left, self._open = list(self._open.values()), {}
        for call in left:
            call.answer.set_exception(self._lost(self._hung_s))


def _pass_on(method: str, answer: Future[Reply], result: Future[Any]) -> None:
    try:
        result.set_result(_value(method, answer.result()))
    except Exception as error:
        result.set_exception(error)


def _value(method: str, reply: Reply) -> Any:
    _raise_error(reply)
    return decode(reply.value, result_type(method))


def _raise_error(reply: Reply) -> None:
    if reply.error is not None:
        raise reply.error.to_exception()
