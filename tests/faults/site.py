"""A server with two workers, clients, an object store and a database, and faults of each of them.

A fault is what happens and to whom: `kill one worker`, `stall clients`, `freeze database`. It is
over when `strike` returns: who was killed is started again, what was frozen or stalled goes on.
Connections of clients, of the object store and of workers that dial in lead through a `FaultyLink`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import msgspec

from tests.faults.site_workers import LocalWorkers, RemoteWorkers, SiteKind, Workers
from tests.store.postgres import PostgresServer
from tests.support.faulty_link import FaultyLink
from tests.support.tcp_listener import target_of
from tinkex.errors import ServerError
from tinkex.server.config import ServerConfig
from tinkex.server.embedded import EmbeddedServer

__all__ = ["DATABASE_FAULTS", "STORE_FAULTS", "Site", "config_for_site", "faults_of"]

PINGS = {"engine_ping_s": 0.2, "engine_hang_s": 2.0}  # so that a silent worker is soon given up
_BRIEF_S, _LONG_S = (0.1, 1.0), (2.5, 3.5)  # pauses below and above `engine_hang_s`
_START_TRIES = 5

_OF_PROCESSES = ("kill", "freeze")
_OF_CONNECTIONS = ("cut", "stall", "one-way-stall", "half-open")
STORE_FAULTS = tuple(f"{each} store" for each in (*_OF_CONNECTIONS, "refuse"))
DATABASE_FAULTS = ("kill database", "freeze database", "cut database")


def faults_of(kind: SiteKind) -> tuple[str, ...]:
    """The faults that a site can have without an object store and a database of its own."""
    of_workers = _OF_PROCESSES if kind == "local" else (*_OF_PROCESSES, *_OF_CONNECTIONS)
    return (
        *(f"{each} one worker" for each in of_workers),
        *(f"{each} both workers" for each in of_workers),
        *(f"{each} server" for each in (*_OF_PROCESSES, "stop")),
        *(f"{each} clients" for each in _OF_CONNECTIONS),
    )


class Site:
    """All processes of one server. `database` is the server's, if it is PostgreSQL."""

    def __init__(
        self,
        server: EmbeddedServer,
        config: ServerConfig,
        folder: Path,
        dice: random.Random,
        *,
        kind: SiteKind,
        store: FaultyLink | None = None,
        database: PostgresServer | None = None,
    ) -> None:
        self._server, self._config, self._dice = server, config, dice
        self._store, self._database = store, database
        self._workers: Workers = LocalWorkers(server)
        if kind != "local":
            self._workers = RemoteWorkers(config, folder, has_roles=kind == "roles")
        self._stack = contextlib.ExitStack()
        self._clients: FaultyLink | None = None
        self.struck: list[str] = []

    def __enter__(self) -> Site:
        self._stack.enter_context(self._workers)
        self._stack.callback(self._server.close)
        self.start_server()
        self._clients = self._stack.enter_context(FaultyLink(target_of(self._server.base_url)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """Where clients find the server."""
        assert self._clients is not None
        return self._clients.url

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

    def require_running(self) -> None:
        """Fails if a worker has ended by itself."""
        self._workers.require_running()

    def strike(self, fault: str) -> None:
        """Has something fail and come back."""
        self.struck.append(fault)
        how, _, whom = fault.partition(" ")
        if whom == "server":
            self._strike_server(how)
        elif whom == "database":
            self._strike_database(how)
        elif whom.endswith("store"):
            assert self._store is not None
            self._spoil(how, [self._store])
        elif whom == "clients":
            assert self._clients is not None
            self._spoil(how, [self._clients])
        else:
            self._strike_workers(how, [0, 1] if "both" in whom else [self._dice.randrange(2)])

    def _strike_workers(self, how: str, numbers: list[int]) -> None:
        if how == "kill":
            self._workers.kill(numbers)
        elif how == "freeze":
            self._workers.send(numbers, signal.SIGSTOP)
            self._pause()
            self._workers.send(numbers, signal.SIGCONT)
        else:
            self._spoil(how, [self._workers.links[number] for number in numbers])

    def _strike_server(self, how: str) -> None:
        if how == "freeze":
            os.kill(self._server.pid, signal.SIGSTOP)
            self._pause()
            os.kill(self._server.pid, signal.SIGCONT)
            return self._await_leader()
        self._server.kill() if how == "kill" else self._server.stop()
        self.start_server()

    def _strike_database(self, how: str) -> None:
        assert self._database is not None
        if how == "cut":
            self._database.cut()
        elif how == "kill":
            self._database.kill()
            time.sleep(self._dice.uniform(0.1, 2.0))
            self._database.start()
        else:
            self._database.freeze()
            self._pause()
            self._database.thaw()
        self._await_leader()

    def _await_leader(self) -> None:
        """Starts the leader again if it ended because it could not renew its lease in time."""
        if self._database is None:
            return
        deadline = time.monotonic() + self._config.lease_s
        while time.monotonic() < deadline:
            if not self._server.is_running:
                self._server.kill()  # collects what is left of it
                return self.start_server()
            time.sleep(0.1)

    def _spoil(self, how: str, links: list[FaultyLink]) -> None:
        """Has connections fail, and heals them after a while."""
        one_side = self._dice.random() < 0.5
        for link in links:
            if how == "cut":
                link.cut()
            elif how == "refuse":
                link.refuse()
            elif how == "half-open":
                link.leave_half_open(caller_is_gone=one_side)
            else:
                is_both = how == "stall"
                link.stall(to_target=is_both or one_side, to_caller=is_both or not one_side)
        if how != "cut":
            self._pause()
        for link in links:
            link.heal()

    def _pause(self) -> None:
        time.sleep(self._dice.uniform(*self._dice.choice((_BRIEF_S, _BRIEF_S, _LONG_S))))


def config_for_site(config: ServerConfig, kind: SiteKind, listen: str) -> ServerConfig:
    """The config with two workers of one thread, and pings that soon notice a silent one."""
    if kind == "local":
        return msgspec.structs.replace(config, workers=2, num_threads=2, **PINGS)
    return msgspec.structs.replace(
        config, workers=0, listen_workers=listen, max_remote_workers=2, num_threads=1, **PINGS
    )
