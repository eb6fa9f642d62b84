"""An engine in a process that this process starts and ends."""

from __future__ import annotations

import contextlib
import subprocess

from tinkex.engine.errors import EngineFailure
from tinkex.engine.interface import ROLES, Role
from tinkex.engine.options import EngineOptions
from tinkex.engine.process import spawn
from tinkex.engine.process.client import STOP_TIMEOUT_S, EngineClient
from tinkex.engine.process.codec import encode
from tinkex.engine.process.liveness import HANG_S, PING_S

__all__ = ["EngineProcess"]


class EngineProcess(EngineClient):
    """An engine in another process. Returns once its models are loaded.

        with EngineProcess(EngineOptions(models={"tiny": "path/to/folder"})) as engine:
            engine.create_adapter("a", "tiny", LoraSpec(rank=8))

    `device="null"` in the options starts the engine without numerics; `"null:0.05"` one that takes
    so many seconds for each call. `worker` names the module that is run, for callers with an
    engine of their own; `begun` is a worker that was begun before, for this engine alone. A worker
    that does not answer pings is killed.

    Raises:
        EngineUserError: a model folder cannot be read.
        EngineFailure: the process died or hung while starting.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        worker: str = spawn.MODULE,
        begun: spawn.BegunWorker | None = None,
        ping_s: float = PING_S,
        hang_s: float = HANG_S,
    ) -> None:
        begun = begun or spawn.begin(worker)
        self._process = begun.process
        super().__init__(begun.connection, encode(options), ping_s=ping_s, hang_s=hang_s)

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def worker(self) -> str:
        return f"process {self.pid}"

    @property
    def worker_name(self) -> str:
        return ""

    @property
    def worker_host(self) -> str:
        return ""

    @property
    def roles(self) -> tuple[Role, ...]:
        return ROLES

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker still runs and answers."""
        return not self.is_gone and self._process.poll() is None

    def _kill_worker(self) -> None:
        self._process.kill()  # SIGKILL, which also ends a stopped process

    def _end_worker(self) -> None:
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may be deep in the kernel
                self._process.wait(STOP_TIMEOUT_S)

    def _lost(self, hung_s: float | None) -> EngineFailure:
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        if hung_s is not None:
            return EngineFailure(
                f"The engine process {self.pid} did not answer for {hung_s:.0f} s and was "
                "ended. Start a new one and load its adapters from their last saved state.",
                code="engine-hung",
            )
        return EngineFailure(
            f"The engine process {self.pid} is gone (exit code {code}). "
            "Start a new one and load its adapters from their last saved state.",
            code="engine-died",
        )
