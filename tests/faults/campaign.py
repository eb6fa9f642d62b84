"""A server that is killed again and again under clients that go on working, and the judgement.

A kill is the name of a crash point (`result.kept=optim_step`; see `tinkex.crashpoints`), or
`server`, `engine` or `both` for a `kill -9` at a random moment. Of a server with several workers
`engine` kills all of them, `one engine` one of them, and `frozen engine` stops one with SIGSTOP.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.faults.audit import audit, compare
from tests.faults.checker import Checker
from tests.faults.history import open_calls, read_history
from tests.faults.reference import Reference
from tests.faults.workload import Task
from tests.server.children import ROOT, children_of
from tests.server.driving import null_config
from tinkex.depot.object_depot import ObjectDepot
from tinkex.engine.interface import Engine
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.errors import ServerError
from tinkex.scheduler import SchedulerConfig
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.scheduler.adapters.known_folders import KNOWN_FOLDERS
from tinkex.server.config import ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.store import Database

LIBRARIES = ("tinker", "tinkex", "plain")
RANDOM = ("server", "engine", "both")
OF_WORKERS = ("one engine", "frozen engine", *RANDOM)
PINGS = {"engine_ping_s": 0.2, "engine_hang_s": 2.0}  # so that a frozen worker is soon replaced
REACH_S = 60.0  # how long a crash point may take to be reached
RECOVERY_S = 60.0  # how long what was struck may take to be answered
END_S = 60.0  # how long the clients may take to finish once the server stays


class Outcome(msgspec.Struct, kw_only=True):
    """What a campaign did and found."""

    seed: int
    deaths: list[str] = []  # what each process died of
    unreached: list[str] = []
    ready_s: list[float] = []  # from each start to ready
    calls: int = 0
    violations: list[str] = []

    def __str__(self) -> str:
        ready = sorted(self.ready_s)
        return (
            f"seed {self.seed}: {len(self.deaths)} kills, {self.calls} calls, "
            f"{len(self.violations)} violations, ready after {ready[len(ready) // 2]:.2f} s "
            f"(median) {ready[-1]:.2f} s (longest), unreached {self.unreached}"
        )


class Campaign:
    """One server and its clients, from start to judgement."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        config: ServerConfig | None = None,
        libraries: tuple[str, ...] = LIBRARIES,
        walkers: int = 1,
        at_least: int = 30,
        has_one_run: bool = False,
    ) -> None:
        self._folder = folder
        self._data_dir = folder / "data"
        self._history = folder / "history"
        self._stop_file = folder / "stop"
        for each in (self._data_dir, self._history):
            each.mkdir(parents=True)
        self._config = config or busy_config(self._data_dir)
        self._libraries, self._walkers, self._at_least = libraries, walkers, at_least
        self._has_one_run = has_one_run
        self._dice = random.Random(f"kills/{seed}")
        self._server = EmbeddedServer(self._config)
        self._has_died_at_start = False
        self._frozen: list[int] = []
        self.outcome = Outcome(seed=seed)

    def run(self, kills: list[str]) -> Outcome:
        """The outcome of a campaign with these kills, one after the other."""
        with contextlib.closing(self._server):
            self._start(armed=_point(kills[0]))
            clients = [self._start_client(library) for library in self._libraries]
            try:
                for kill, following in zip(kills, [*kills[1:], ""], strict=True):
                    if not self._has_died_at_start:
                        self._await_death(kill, clients)
                    self._start(armed=_point(following))
                self._stop_file.touch()
                self._join(clients)
            finally:
                for client in clients:
                    client.kill()
                    client.wait()
                self._thaw()
            self._server.stop()
            self._server.start()  # sweeps up what the last crash left
            self._server.stop()
        self._judge()
        return self.outcome

    def _start(self, armed: str) -> None:
        """Has the server run, also if it was to die while it starts."""
        self._has_died_at_start = False
        if self._server.is_running and not armed:
            return
        if self._server.is_running:
            self._kill("server")
        while True:
            if self._config.depot is not None:
                self._lose_copies()
            began = time.monotonic()
            try:
                with _environment(armed):
                    self._server.start()
                self.outcome.ready_s.append(time.monotonic() - began)
                return
            except ServerError:
                if not armed:
                    raise
                self._server.kill()
                self.outcome.deaths.append(armed)
                self._has_died_at_start = True
                armed = ""

    def _lose_copies(self) -> None:
        """Deletes all local copies, as if the server began on another machine."""
        for kind in DataFolders.KINDS:
            shutil.rmtree(self._data_dir / kind, ignore_errors=True)

    def _download(self, url: str) -> None:
        """Brings what rows name from the depot into the data folder, for the judges."""
        self._lose_copies()
        depot, db = ObjectDepot(url), Database(self._config.url_of_database, readers=1)
        for kind, known in KNOWN_FOLDERS.items():
            (self._data_dir / kind).mkdir()
            for folder_id in db.read(known):
                depot.get(kind, folder_id, self._data_dir / kind / folder_id)
        db.close()

    def _await_death(self, kill: str, clients: list[subprocess.Popen[str]]) -> None:
        if kill in OF_WORKERS:
            # The engine alone may have died before, at random or at one of its own points.
            if kill != "server" and "engine" in "".join(self.outcome.deaths[-1:]):
                self._await_answers()
            time.sleep(self._dice.uniform(0.1, 1.2))
            self._kill(kill)
            return
        deadline = time.monotonic() + REACH_S
        while time.monotonic() < deadline:
            if self._has_died_of(kill):
                self.outcome.deaths.append(kill)
                return
            self._require_running(clients)
            time.sleep(0.02)
        self.outcome.unreached.append(kill)
        self._kill("server")

    def _await_answers(self) -> None:
        """Waits until what was struck is answered: an engine may not die thrice over a request."""
        struck = open_calls(self._history.iterdir())
        deadline = time.monotonic() + RECOVERY_S
        while struck & open_calls(self._history.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _has_died_of(self, kill: str) -> bool:
        """Whether the process is dead that the kill was for; an engine leaves its server alive."""
        last = kill.split(",")[-1]
        if last.startswith("engine.") and not last.endswith("!"):
            if f"at {last}\n" not in self._server.log():
                return False
            time.sleep(self._dice.uniform(0.0, 0.5))  # some way into the recovery
            return True
        if self._server.is_running:
            return False
        self._server.kill()  # collects what is left of it
        return True

    def _kill(self, what: str) -> None:
        if what in ("engine", "both"):
            for pid in children_of(self._server.pid):
                os.kill(pid, signal.SIGKILL)
            self.outcome.deaths.append("engine")
        if what in ("one engine", "frozen engine"):
            is_frozen = what == "frozen engine"
            pid = self._dice.choice(children_of(self._server.pid))
            os.kill(pid, signal.SIGSTOP if is_frozen else signal.SIGKILL)
            if is_frozen:
                self._frozen.append(pid)
            self.outcome.deaths.append(what)
        if what in ("server", "both"):
            self._server.kill()
            self.outcome.deaths.append("server")

    def _thaw(self) -> None:
        """Lets frozen engines go on: those whose server is dead find that out and end."""
        for pid in self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _start_client(self, library: str) -> subprocess.Popen[str]:
        task = Task(
            library=library,
            base_url=self._client_url(),
            api_key=self._server.api_key,
            base_model=self._config.models[0].name,
            seed=self.outcome.seed,
            history=str(self._history),
            stop_file=str(self._stop_file),
            walkers=self._walkers,
            at_least=self._at_least,
            has_one_run=self._has_one_run,
        )
        with (self._folder / f"{library}.err").open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.workload", msgspec.json.encode(task).decode()],
                cwd=ROOT,
                env={**os.environ, "TINKER_TELEMETRY": "0"},
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
            )

    def _client_url(self) -> str:
        """Where the clients find the server."""
        return self._server.base_url

    def _require_running(self, clients: list[subprocess.Popen[str]]) -> None:
        for client, library in zip(clients, self._libraries, strict=True):
            code = client.poll()
            assert code is None, f"{library} ended with {code} too early:\n{self._said_by(library)}"

    def _said_by(self, library: str) -> str:
        return (self._folder / f"{library}.err").read_text()[-3000:]

    def _join(self, clients: list[subprocess.Popen[str]]) -> None:
        deadline = time.monotonic() + END_S
        for client, library in zip(clients, self._libraries, strict=True):
            try:
                code = client.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.outcome.violations.append(f"{library}: the clients did not come to their end")
                continue
            if code != 0:
                said = self._said_by(library)
                self.outcome.violations.append(f"{library}: ended with {code}\n{said}")

    def _judge(self) -> None:
        events = read_history(self._history.iterdir())
        if self._config.depot is not None:
            self._download(self._config.depot)
        self.outcome.calls = sum(event.phase == "invoke" for event in events)
        reference_dir = self._folder / "reference"
        reference_dir.mkdir()
        reference = Reference(self._make_engine(), reference_dir, self._config.models[0].name)
        checker = Checker(reference, with_sampled_logprobs=self._is_null)
        self.outcome.violations += checker.check(events)
        self.outcome.violations += audit(self._data_dir)
        self.outcome.violations += compare(self._data_dir, reference.checkpoints)

    @property
    def _is_null(self) -> bool:
        return self._config.device == "null"

    def _make_engine(self) -> Engine:
        """The engine the reference computes with, one request at a time."""
        (model, *_) = self._config.models
        if self._is_null:
            return NullEngine((model.name,))
        from tinkex.engine.torch_engine import TorchEngine

        folders = {model.name: model.source}
        config = self._config
        return TorchEngine(
            EngineOptions(
                models=folders, num_threads=config.num_threads, num_engines=config.workers
            )
        )


def busy_config(data_dir: Path, **changes: Any) -> ServerConfig:
    """A server that takes snapshots often, holds few adapters, and lets checkpoints end soon."""
    scheduler = SchedulerConfig(
        hole_grace_s=60.0, snapshot_after_operations=7, max_adapters=4, max_samplers=5
    )
    config = null_config(data_dir, scheduler=scheduler, poll_hold_s=10.0, **changes)
    limits = msgspec.structs.replace(config.limits, min_ttl_s=1)
    return msgspec.structs.replace(config, limits=limits)


def _point(kill: str) -> str:
    return "" if kill in OF_WORKERS else kill


@contextmanager
def _environment(crash_at: str) -> Iterator[None]:
    os.environ["TINKEX_TEST_CRASH"] = crash_at
    try:
        yield
    finally:
        del os.environ["TINKEX_TEST_CRASH"]
