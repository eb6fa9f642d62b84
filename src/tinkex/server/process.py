"""A whole server in one process: store, scheduler, engine and HTTP, built from a config.

SIGTERM drains, and so does SIGINT unless it was ignored at the start: long polls are let go, the
running batch ends, snapshots are taken; what is unfinished stays in the log and runs at the next
start on the same data folder. A second SIGINT ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

import msgspec
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.types import ASGIApp

from tinkex.engine.interface import Engine, EngineUserError
from tinkex.engine.process.spawn import BegunWorker
from tinkex.errors import ConfigError
from tinkex.scheduler.scheduler import Progress, Scheduler
from tinkex.server.app import build_app
from tinkex.server.config import ServerConfig
from tinkex.server.data_folder import lock_folder, make_private, share_folder
from tinkex.server.gate.admission import Admission
from tinkex.server.gate.auth import Keyring
from tinkex.server.gate.concurrency_limit import ConcurrencyLimit
from tinkex.server.gate.operator_token import OperatorToken
from tinkex.server.gate.overload import Overload
from tinkex.server.gate.rate_limit import RateLimit
from tinkex.server.gate.signing import Signer
from tinkex.server.gate.signing_secret import SecretFile, ensure_secret_file
from tinkex.server.http.access_log import AccessLog
from tinkex.server.http.headers import HeadMiddleware
from tinkex.server.leadership import (
    LeaseGate,
    await_folder,
    check_folder,
    lease_of,
    take_or_refuse,
)
from tinkex.server.listen.connections import protocol_class
from tinkex.server.listen.socket import listen, url_of
from tinkex.server.listen.uvicorn_server import HttpServer
from tinkex.server.live_feed import LiveFeed
from tinkex.server.models.engine_factory import engine_factories
from tinkex.server.models.launcher_process import LauncherProcess
from tinkex.server.models.ray_settings import check_ray_settings, launch_settings
from tinkex.server.models.remote_workers import RemoteWorkers
from tinkex.server.models.warm_engine import WarmEngine
from tinkex.server.monitoring.monitoring import Monitoring
from tinkex.server.monitoring.status import StatusBoard
from tinkex.server.open_folders import folder_place, open_folders
from tinkex.server.openai.errors import OpenAIErrors
from tinkex.server.result_waiters import Waiters
from tinkex.server.services import Services
from tinkex.server.standby import wait_for_lease
from tinkex.server.upkeep import gc_tuning
from tinkex.server.upkeep.first_key import keep_bootstrap_key, make_first_key, revoke_first_key
from tinkex.server.upkeep.janitor import Janitor
from tinkex.server.upkeep.signals import stopped_by_signals
from tinkex.store import owners
from tinkex.store.leader_lease import LeaderLease
from tinkex.store.opening import open_database
from tinkex.store.owners import Owner

_logger = logging.getLogger(__name__)


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens, and whose work is on it; `new_key` is a key made at this start,
    shown once and never again."""

    url: str
    new_key: str | None = None
    owners: list[Owner] = []


OnStarted = Callable[[Started], None]


class ServerProcess:
    """Everything of one server. `run` returns when it was stopped.

    `worker` is a process begun for its engine while there was no server yet.
    """

    def __init__(
        self,
        config: ServerConfig,
        make_engine: Callable[[], Engine] | None = None,
        *,
        worker: BegunWorker | None = None,
    ) -> None:
        check_ray_settings(config)
        self._config = config
        self._engine_factories = (
            engine_factories(config, worker)
            if make_engine is None
            else [make_engine] * config.workers
        )
        self._remote: RemoteWorkers | None = None
        self._url = ""
        self._store_id = ""
        self._services: Services | None = None
        self._http: HttpServer | None = None
        self._overload: Overload
        self._on_ready: Callable[[], None] | None = None
        self._is_stopping = False
        self._fatal: EngineUserError | None = None
        self._failure: Exception | None = None
        with ExitStack() as opened:
            make_private(config.data_dir)
            self._lease = lease_of(config)
            if self._lease is not None:
                opened.callback(self._lease.close)
                if config.is_standby:
                    await_folder(config, self._lease)
                else:
                    take_or_refuse(self._lease)
            if not config.is_standby:
                self._open_store(opened)
            self._opened = opened.pop_all()

    def _open_store(self, opened: ExitStack) -> None:
        """Opens what a server works on. With PostgreSQL it holds the lease by now."""
        config, lease = self._config, self._lease
        if lease is None:
            opened.enter_context(lock_folder(config.data_dir))
        else:
            record = lease.read()
            if record.epoch > 1:  # it had a leader before this one
                check_folder(config, record)
            opened.enter_context(share_folder(config.data_dir, record.store_id))
        self._db = open_database(
            config.url_of_database, reserve_bytes=config.reserve_bytes, lease=lease
        )
        opened.callback(self._db.close)
        self._folders = open_folders(config, self._db)
        opened.callback(self._folders.close)
        if config.listen_workers is not None:
            place = folder_place(config, self._db, self._folders)
            self._remote = RemoteWorkers(config, place)
            self._store_id = place.database_id
            opened.callback(self._remote.close)
        self._signer = Signer(_signing_secret(config))
        self._keyring = Keyring(self._db, self._signer)
        self._operator_token = OperatorToken.of(config)
        self._monitoring = Monitoring(config)
        self._admission = Admission(
            config.limits, max_body_bytes_in_memory=config.max_body_bytes_in_memory
        )
        keep_bootstrap_key(self._db, config.bootstrap_key)

    def run(
        self, *, on_listening: OnStarted | None = None, on_ready: OnStarted | None = None
    ) -> None:
        """Serves until a signal or `stop`.

        `on_listening` is called when the socket listens, `on_ready` when the engine has started;
        only then is a first key made, so that none is lost by a start that fails. What either of
        them raises ends the server and is raised here; a key made for `on_ready` is revoked then.

        Raises:
            ConfigError: nothing can listen there, or the engine can never start.
        """
        with self._opened as opened, stopped_by_signals(self.stop):
            listener = opened.enter_context(listen(self._config.host, self._config.port))
            self._url = url = url_of(listener)
            if on_ready is not None:
                self._on_ready = lambda: self._tell_ready(url, on_ready)
            if on_listening is not None:
                on_listening(Started(url=url))
            lease = self._lease
            if lease is not None and not lease.is_held and self._stand_by(lease, listener):
                self._open_store(opened)
            if lease is None or lease.is_held:
                uvloop.run(self._serve(listener))
        if self._failure is not None:
            raise self._failure
        if self._fatal is not None:
            raise ConfigError(
                str(self._fatal),
                hint="Correct --model, --device or --dtype, then start again.",
                code=self._fatal.code,
            ) from self._fatal
        _logger.info(
            "Stopped. The state is kept in %s; the next start on it continues.",
            self._config.data_dir,
        )

    def _stand_by(self, lease: LeaderLease, listener: socket.socket) -> bool:
        """Whether the server leads now; False if it was stopped, or an engine cannot start.

        The engines load their models meanwhile.
        """
        warm = [WarmEngine(factory) for factory in self._engine_factories]
        for engine in warm:
            engine.prepare()

        def is_over() -> bool:
            self._fatal = next((each.fatal for each in warm if each.fatal is not None), None)
            return self._is_stopping or self._fatal is not None

        if uvloop.run(wait_for_lease(lease, listener, self._config.connections, is_over)):
            self._engine_factories = list(warm)
            return True
        for engine in warm:
            engine.close()
        return False

    def stop(self) -> None:
        """Has `run` drain and return; any thread may call it, and before `run` serves, too."""
        self._is_stopping = True
        if self._http is not None:
            self._http.drain()

    async def _serve(self, listener: socket.socket) -> None:
        concurrency = ConcurrencyLimit(self._config.busy_after_s)
        rate = RateLimit(self._progress, lambda: concurrency.in_flight)
        overload = self._overload = Overload(concurrency, rate)
        inner = build_app(
            self._keyring, self._admission, self._lifespan, overload, self._operator_token
        )
        gated: ASGIApp = inner if self._lease is None else LeaseGate(inner, self._lease)
        watched = self._monitoring.wrap(gated, inner.routes)
        app: ASGIApp = OpenAIErrors(HeadMiddleware(watched, self._config.connections))
        access_log = None
        if self._config.verbosity > 0:
            app = access_log = AccessLog(app, with_polls=self._config.verbosity > 1)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(self._config.drain_s),
            http=protocol_class(self._config.connections),
            h11_max_incomplete_event_size=self._config.connections.max_head_bytes,
            server_header=False,
            ws="none",
        )
        self._http = HttpServer(config, self._begin_drain)
        if self._is_stopping:  # requested before there was anything to drain
            return
        await self._http.serve(sockets=[listener])
        if access_log is not None:
            access_log.tell_polls()

    def _progress(self) -> Progress:
        assert self._services is not None, "requests come only while it serves"
        return self._services.scheduler.progress()

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        waiters, live = Waiters(), LiveFeed()
        remote = [] if self._remote is None else self._remote.engine_factories()
        scheduler = Scheduler(
            self._db,
            self._folders,
            [*self._engine_factories, *remote],
            msgspec.structs.replace(
                self._config.scheduler,
                max_disk_bytes_per_owner=self._config.limits.max_disk_bytes_per_owner,
            ),
            self._monitoring.publish(waiters.publish),
            announce=live.note_operations,
            num_remote=len(remote),
        )
        services = Services(
            config=self._config,
            db=self._db,
            scheduler=scheduler,
            waiters=waiters,
            live=live,
            keyring=self._keyring,
            signer=self._signer,
            admission=self._admission,
        )
        self._services = app.state.services = services
        assert self._http is not None, "it runs this"
        self._monitoring.start(services, self._overload, self._http)
        app.state.status_board = StatusBoard(services)
        await asyncio.to_thread(scheduler.start)
        launcher = self._start_launcher()
        janitor = Janitor(services)
        chores = (janitor.run(), self._watch(services), gc_tuning.collect_periodically())
        tasks = [asyncio.create_task(chore) for chore in chores]
        try:
            yield
        finally:
            self._begin_drain()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if launcher is not None:
                await asyncio.to_thread(launcher.close)
            if self._remote is not None:  # slots that wait for a worker wait no longer
                await asyncio.to_thread(self._remote.close)
            await asyncio.to_thread(scheduler.stop, self._config.drain_s)
            await janitor.last_round()
            await asyncio.to_thread(self._monitoring.close)

    def _start_launcher(self) -> LauncherProcess | None:
        if self._config.ray is None or self._remote is None:
            return None
        return LauncherProcess(
            launch_settings(
                self._config,
                store_id=self._store_id,
                worker_port=self._remote.port,
                server_url=self._url,
            )
        )

    async def _watch(self, services: Services) -> None:
        """Logs that an engine has started, or ends the server if one can never start."""
        while not services.scheduler.are_all_ready():
            self._fatal = services.scheduler.fatal()
            if self._fatal is not None:
                self.stop()
                return
            if services.scheduler.is_ready():
                await self._tell_once()
            await asyncio.sleep(0.1)
        await self._tell_once()

    async def _tell_once(self) -> None:
        on_ready, self._on_ready = self._on_ready, None
        if on_ready is not None:
            await asyncio.to_thread(on_ready)

    def _begin_drain(self) -> None:
        if self._services is not None and not self._services.is_draining:
            if self._fatal is None:
                self._tell_of_drain(self._services)
            self._services.is_draining = True
            self._services.waiters.close()
            self._services.live.close()

    def _tell_ready(self, url: str, on_ready: OnStarted) -> None:
        """Calls `on_ready` with a first key if one is needed; stops the server if it fails.

        Runs in a thread that outlives the task waiting for it, so the failure is kept here.
        """
        try:
            new_key = make_first_key(self._db)
            try:
                found = self._db.read(owners.list_all)
                on_ready(Started(url=url, new_key=new_key, owners=found))
            except BaseException:
                if new_key is not None:  # it may never have been shown: the next start makes one
                    revoke_first_key(self._db, new_key)
                raise
        except Exception as error:
            _logger.error("The server stops, because it could not report its start: %s", error)
            self._failure = error
            self.stop()

    def _tell_of_drain(self, services: Services) -> None:
        counts = services.scheduler.queue_counts()
        _logger.info(
            "Draining: %d open requests get up to %g s, then the running batch ends and adapters "
            "are saved. %d operations and %d samples stay in the log for the next start. Ctrl-C "
            "again ends at once.",
            0 if self._http is None else self._http.num_open_requests,
            self._config.drain_s,
            sum(counts.operations.values()),
            counts.requests + counts.running_requests,
        )


def _signing_secret(config: ServerConfig) -> SecretFile:
    """The secrets to sign with. A file the operator names is never made here: one that is missing
    was not mounted or not moved along, and a new secret would end all tokens and links."""
    path, is_named = config.path_of_signing_secret, config.signing_secret_file is not None
    if not is_named:
        ensure_secret_file(path)
    return SecretFile(path, may_be_link=is_named)
