"""A server without engines of its own, two workers that dial in, and faults of all that can fail.

Each worker has a `FaultyLink` to the server, and all have one to the object store. A fault is over
when `strike` returns: who was killed is started again, and what was frozen or stalled goes on.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from tests.store.postgres import PostgresServer
from tests.support.faulty_link import FaultyLink
from tinkex.errors import ServerError
from tinkex.server.config import ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.gate.signing_secret import ensure_secret_file
from tinkex.server.models.worker_command import parse_address

__all__ = ["CONNECTION_FAULTS", "DATABASE_FAULT", "FAULTS", "STORE_FAULT", "RemoteSite"]

PINGS = {"engine_ping_s": 0.2, "engine_hang_s": 2.0}  # so that a silent worker is soon given up
_BRIEF_S, _LONG_S = (0.1, 1.0), (2.5, 3.5)  # pauses below and above `engine_hang_s`
_START_TRIES = 5

_OF_WORKERS = ("kill", "freeze", "cut", "stall", "one-way stall", "half-open")
CONNECTION_FAULTS = ("cut", "stall", "one-way stall", "half-open")
FAULTS = (
    *(f"{fault} one worker" for fault in _OF_WORKERS),
    *(f"{fault} both workers" for fault in _OF_WORKERS),
    "kill server",
    "stop server",
)
STORE_FAULT = "store away"
DATABASE_FAULT = "database killed"


class RemoteSite:
    """All processes of one server. `database` is killed by its fault, if it is PostgreSQL."""

    def __init__(
        self,
        server: EmbeddedServer,
        config: ServerConfig,
        folder: Path,
        dice: random.Random,
        *,
        store: FaultyLink | None = None,
        database: PostgresServer | None = None,
    ) -> None:
        assert config.listen_workers is not None
        self._server, self._config, self._folder, self._dice = server, config, folder, dice
        self._store, self._database = store, database
        target = parse_address(config.listen_workers, "listen_workers")
        self._links = [FaultyLink(target), FaultyLink(target)]
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()
        self.struck: list[str] = []

    def __enter__(self) -> RemoteSite:
        self._config.data_dir.mkdir(parents=True, exist_ok=True)
        ensure_secret_file(self._config.data_dir / "worker-token")
        for number, link in enumerate(self._links):
            self._stack.enter_context(link)
            self._stack.callback(self._end_worker, number)
            self._start_worker(number)
        self._stack.callback(self._server.close)
        self.start_server()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_server(self) -> None:
        """Starts the server and returns once it can take work."""
        for left in reversed(range(_START_TRIES)):
            try:
                self._server.start()
                return self._server.wait_ready()
            except ServerError:
                if not left:
                    raise
                self._server.kill()
                time.sleep(0.5)

    def strike(self, fault: str) -> None:
        """Has something fail and come back."""
        self.struck.append(fault)
        if fault == STORE_FAULT:
            self._take_store_away()
        elif fault == DATABASE_FAULT:
            self._kill_database()
        elif fault.endswith("server"):
            self._server.kill() if fault.startswith("kill") else self._server.stop()
            self.start_server()
        else:
            what, _, which = fault.rpartition(" worker")[0].rpartition(" ")
            del which
            numbers = [0, 1] if "both" in fault else [self._dice.randrange(2)]
            self._strike_workers(what, numbers)

    def log_of(self, number: int) -> str:
        """What a worker has logged so far."""
        return (self._folder / f"worker-{number}.log").read_text(errors="replace")

    def require_running(self) -> None:
        """Fails if a worker has ended by itself."""
        for number, process in self._workers.items():
            assert process.poll() is None, self.log_of(number)[-3000:]

    def _strike_workers(self, what: str, numbers: list[int]) -> None:
        links = [self._links[number] for number in numbers]
        if what == "kill":
            for number in numbers:
                self._end_worker(number)
            for number in numbers:
                self._start_worker(number)
        elif what == "freeze":
            self._signal(numbers, signal.SIGSTOP)
            self._pause()
            self._signal(numbers, signal.SIGCONT)
        elif what == "cut":
            for link in links:
                link.cut()
        else:
            caller_is_gone = self._dice.random() < 0.5
            for link in links:
                if what == "half-open":
                    link.leave_half_open(caller_is_gone=caller_is_gone)
                else:
                    is_both = what == "stall"
                    link.stall(
                        to_target=is_both or caller_is_gone,
                        to_caller=is_both or not caller_is_gone,
                    )
            self._pause()
            for link in links:
                link.heal()

    def _take_store_away(self) -> None:
        assert self._store is not None
        self._store.refuse()
        time.sleep(self._dice.uniform(0.5, 3.0))
        self._store.heal()

    def _kill_database(self) -> None:
        assert self._database is not None
        self._database.kill()
        time.sleep(self._dice.uniform(0.1, 2.0))
        self._database.start()
        # A leader that could not renew its lease in time ends, and is started again from outside.
        with contextlib.suppress(ServerError):
            return self._server.wait_ready()
        self._server.kill()
        self.start_server()

    def _pause(self) -> None:
        time.sleep(self._dice.uniform(*self._dice.choice((_BRIEF_S, _BRIEF_S, _LONG_S))))

    def _signal(self, numbers: list[int], number: signal.Signals) -> None:
        for each in numbers:
            self._workers[each].send_signal(number)

    def _end_worker(self, number: int) -> None:
        process = self._workers.pop(number, None)
        if process is not None:
            process.kill()
            process.wait()

    def _start_worker(self, number: int) -> None:
        command = [sys.executable, "-m", "tinkex", "worker", "--num-threads", "1"]
        command += ["--join", f"127.0.0.1:{self._links[number].port}"]
        command += ["--token-file", str(self._config.data_dir / "worker-token")]
        command += ["--name", f"worker-{number}", "--device", self._config.device]
        command += ["--data-dir", str(self._folder / f"worker-{number}")]
        for model in self._config.models:
            command += ["--model", f"{model.name}={model.source}"]
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            self._workers[number] = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ}
            )


def for_remote(config: ServerConfig, listen: str) -> ServerConfig:
    """The config without engines of its own, and with pings that soon notice a silent worker."""
    return msgspec.structs.replace(
        config, workers=0, listen_workers=listen, max_remote_workers=2, num_threads=1, **PINGS
    )
