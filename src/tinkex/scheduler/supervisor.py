"""Starts one engine, and another in its place when it fails."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from tinkex.engine.errors import NoWorkerError, ServerEndingError, server_ending
from tinkex.engine.interface import Engine, EngineError, EngineFailure, EngineUserError, ModelInfo

_logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 5.0


StateName = Literal["starting", "ready", "not_responding", "restarting"]


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an engine, and for how many seconds it has had it.

    `starting` is the first start, `restarting` every other; `not_responding` is an engine that does
    not answer pings and has not been discarded yet.
    """

    state: StateName
    since_s: float


class Supervisor:
    """One engine that is running or being restarted. `discard` and `revive` are for one thread.

    `is_patient` says whether a start waits for a worker from elsewhere however long it takes.
    """

    def __init__(self, factory: Callable[[], Engine], name: str = "engine") -> None:
        self.is_patient = True
        self._factory = factory
        self._name = name
        self._engine: Engine | None = None
        self._models: list[ModelInfo] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._has_started = False
        self.num_starts = 0  # of engines, the first one included
        self._is_starting = False
        self._on_loss: list[Callable[[], None]] = []
        self._on_start: list[Callable[[Engine], None]] = []
        self._changed_at = time.monotonic()  # when the engine was last started or lost

    def on_loss(self, forget: Callable[[], None]) -> None:
        """Has `forget` called whenever an engine was discarded: what it held is gone.

        Called by the thread that discards, after the engine was closed and before another starts;
        in the order of registration. Not called when the server ends.
        """
        self._on_loss.append(forget)

    def on_start(self, callback: Callable[[Engine], None]) -> None:
        """Registers what is called with every new engine, by the thread that starts it and before
        that thread uses it."""
        self._on_start.append(callback)

    @property
    def is_closed(self) -> bool:
        """Whether the server is ending, so that no engine is started any more."""
        return self._closing.is_set()

    @property
    def engine(self) -> Engine:
        """The engine, started if there is none; a start that fails is retried.

        Raises:
            EngineUserError: it is the first one, and its models cannot be read.
            NoWorkerError: it would be that of a worker elsewhere, none has come for a while, and
                this is not `is_patient`.
            ServerEndingError: the server is ending.
        """
        with self._lock:
            if self.is_closed:
                raise server_ending()
            has_started = self._engine is None
            if self._engine is None:
                self._is_starting = True
                try:
                    self._engine = self._start()
                finally:
                    self._is_starting = False
            engine = self._engine
        if has_started:  # without the lock: those who are called take others
            for callback in self._on_start:
                callback(engine)
        return engine

    @property
    def current(self) -> Engine | None:
        """The engine if there is one; never starts one."""
        return self._engine

    @property
    def is_down(self) -> bool:
        """Whether the engine is gone, or was never started."""
        engine = self._engine
        return engine is None or engine.is_gone

    @property
    def starting_s(self) -> float | None:
        """For how long there is no engine, while one is being started; what the one before it held
        is forgotten by then. None while there is an engine."""
        return time.monotonic() - self._changed_at if self._is_starting else None

    def state(self) -> EngineState:
        """The engine's state; never blocks."""
        engine, since_s = self._engine, time.monotonic() - self._changed_at
        if engine is None:
            state: StateName = "restarting" if self._has_started else "starting"
            return EngineState(state=state, since_s=since_s)
        if engine.is_gone:  # the driver discards it in a moment
            return EngineState(state="restarting", since_s=0.0)
        silent_s = engine.silent_seconds
        if silent_s:
            return EngineState(state="not_responding", since_s=silent_s)
        return EngineState(state="ready", since_s=since_s)

    @property
    def worker(self) -> str:
        """What the worker of the present engine is called; empty while there is none."""
        engine = self._engine
        return "" if engine is None else engine.worker

    @property
    def worker_name(self) -> str:
        """The name that the worker of the present engine gave itself; empty for a local one."""
        engine = self._engine
        return "" if engine is None else engine.worker_name

    @property
    def worker_host(self) -> str:
        """The machine of the present engine's worker; empty if it is this one."""
        engine = self._engine
        return "" if engine is None else engine.worker_host

    @property
    def is_remote(self) -> bool:
        """Whether the present engine reads and writes folders elsewhere."""
        engine = self._engine
        return engine is not None and engine.is_remote

    def busy_seconds(self) -> float:
        """For how many seconds the present engine has computed; 0 while there is none."""
        engine = self._engine
        return 0.0 if engine is None else engine.busy_seconds

    def models(self) -> list[ModelInfo]:
        """The base models; empty before the first start."""
        return self._models

    def revive(self) -> None:
        """Replaces an engine that died or hung while it was idle: no request is to blame."""
        if self._engine is not None and self._engine.is_gone:
            self.discard(_end_of(self._engine))
        if self._engine is None:
            _ = self.engine

    def discard(self, reason: BaseException) -> None:
        """Closes the engine and has what it held forgotten; the next use starts another."""
        if not self.is_closed:
            self._log_loss(reason)
        self._close_engine()
        if self.is_closed:
            return
        for forget in self._on_loss:
            try:
                forget()
            except Exception:  # the other callbacks must run anyway
                _logger.exception("Part of what a lost engine held was not cleaned up.")

    def _log_loss(self, reason: BaseException) -> None:
        """A worker from elsewhere may have been stopped on purpose; it is not started from here."""
        if self.is_remote:
            _logger.warning("The %s has lost its worker, %s: %s", self._name, self.worker, reason)
        else:
            _logger.error("The %s failed and will be restarted: %s", self._name, reason)

    def stop_starting(self) -> None:
        """Aborts a start that has not succeeded yet; a running engine is not affected."""
        if self._engine is None:
            self._closing.set()

    def close(self) -> None:
        """Closes the engine, also while a call runs, and starts no other."""
        self._closing.set()
        self._close_engine()

    def _start(self) -> Engine:
        """A new engine, retried until it starts: no request is to blame if it does not."""
        wait_s = _FIRST_WAIT_S
        while not self.is_closed:
            try:
                began = time.monotonic()
                engine = self._factory()
                self._models = _models_of(engine)
                self._has_started = True
                self.num_starts += 1
                took_s = time.monotonic() - began
                name = f" ({engine.worker_name})" if engine.is_remote else ""
                _logger.info(
                    "%s%s ready after %.1f s: %s",
                    self._name.capitalize(),
                    name,
                    took_s,
                    _described(self._models),
                )
                self._changed_at = time.monotonic()
                return engine
            except NoWorkerError:
                if not self.is_patient:
                    raise
                continue
            except (EngineError, OSError) as error:
                if isinstance(error, EngineUserError) and not self._has_started:
                    raise  # the models are wrong: another try would not help
                if not (self.is_closed or isinstance(error, ServerEndingError)):
                    _logger.error(
                        "The %s did not start; retrying in %g s: %s", self._name, wait_s, error
                    )
            self._closing.wait(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise server_ending()

    def _close_engine(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        self._changed_at = time.monotonic()
        if engine is not None:
            with contextlib.suppress(Exception):
                engine.close()


def _end_of(engine: Engine) -> EngineFailure:
    """Why an engine is gone that failed no call, as the next one would say it."""
    if engine.is_remote:
        return EngineFailure("It left while it was idle.", code="engine-disconnected")
    try:
        engine.models()
    except EngineFailure as error:
        return error
    return EngineFailure("It died while it was idle.", code="engine-died")


def _models_of(engine: Engine) -> list[ModelInfo]:
    """The engine's models; one that has died since its start is closed, since no one uses it."""
    try:
        return engine.models()
    except BaseException:
        with contextlib.suppress(Exception):
            engine.close()
        raise


def _described(infos: list[ModelInfo]) -> str:
    """Each base once, under its first name."""
    bases: dict[str, str] = {}
    for info in infos:
        size = f"{info.num_parameters / 1e6:,.1f}M parameters, context {info.context_length:,}"
        bases.setdefault(info.path or info.name, f"{info.name} ({size})")
    return "; ".join(bases.values())
