"""A whole server in one process: store, scheduler, engine and HTTP, built from a config.

SIGTERM and SIGINT drain: long polls are let go, the running batch ends, snapshots are taken; what
is unfinished stays in the log and runs at the next start on the same data folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

import msgspec
import uvicorn
import uvloop
from starlette.applications import Starlette

from tinkex.engine.begun_worker import BegunWorker
from tinkex.engine.interface import Engine, EngineUserError
from tinkex.errors import ConfigError
from tinkex.scheduler.scheduler import Progress, Scheduler
from tinkex.server import collecting
from tinkex.server.admission import Admission
from tinkex.server.app import build_app
from tinkex.server.auth import Keyring
from tinkex.server.config import ServerConfig
from tinkex.server.connections import protocol_class
from tinkex.server.doorstep import Doorstep
from tinkex.server.engines import engine_factory
from tinkex.server.janitor import Janitor
from tinkex.server.overload import Door, OverloadMiddleware, Pace, Room
from tinkex.server.services import Services
from tinkex.server.signing import Signer
from tinkex.server.waiting import Waiters
from tinkex.store import Database, keys, settings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens; `new_key` is a key made at this start, shown once and never again."""

    url: str
    new_key: str | None


class ServerProcess:
    """Everything of one server. `run` returns when it was told to stop.

    `worker` is a process begun for its engine while there was no server yet.
    """

    def __init__(
        self,
        config: ServerConfig,
        make_engine: Callable[[], Engine] | None = None,
        *,
        worker: BegunWorker | None = None,
    ) -> None:
        self._config = config
        self._make_engine = make_engine or engine_factory(config, worker)
        self._services: Services | None = None
        self._http: _Http | None = None
        self._fatal: EngineUserError | None = None
        with ExitStack() as opened:
            _make_private(config.data_dir)
            opened.enter_context(_lock_folder(config.data_dir))
            self._db = Database(config.url_of_database)
            opened.callback(self._db.close)
            self._signer = Signer(self._db.write(settings.secret, "signing"))
            self._keyring = Keyring(self._db, self._signer)
            self._admission = Admission(
                config.limits, max_body_bytes_in_memory=config.max_body_bytes_in_memory
            )
            self.new_key = self._first_key()
            self._opened = opened.pop_all()

    def run(self, on_started: Callable[[Started], None]) -> None:
        """Serves until a signal or `stop`; `on_started` is called when the socket listens."""
        with self._opened as opened:
            listener = opened.enter_context(_listen(self._config))
            uvloop.run(self._serve(listener, on_started))
        if self._fatal is not None:
            raise ConfigError(str(self._fatal), code=self._fatal.code) from self._fatal

    def stop(self) -> None:
        """Has `run` drain and return; any thread may call it."""
        if self._http is not None:
            self._http.drain()

    async def _serve(self, listener: socket.socket, on_started: Callable[[Started], None]) -> None:
        inner = build_app(self._keyring, self._config, self._admission, self._lifespan)
        room = Room(self._config.busy_after_s)
        pace = Pace(self._progress, lambda: room.inside)
        door = Door(room, pace, self._keyring.known_owner)
        app = OverloadMiddleware(inner, door)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(self._config.drain_s),
            http=protocol_class(self._config.connections, Doorstep(door)),
            h11_max_incomplete_event_size=self._config.connections.max_head_bytes,
            server_header=False,
            ws="none",
        )
        self._http = _Http(config, self._begin_drain)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        on_started(Started(url=f"http://{shown}:{port}", new_key=self.new_key))
        await self._http.serve(sockets=[listener])

    def _progress(self) -> Progress:
        assert self._services is not None, "requests come only while it serves"
        return self._services.scheduler.progress()

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        waiters = Waiters()
        scheduler = Scheduler(
            self._db,
            self._config.data_dir,
            self._make_engine,
            msgspec.structs.replace(
                self._config.scheduler,
                max_disk_bytes_per_owner=self._config.limits.max_disk_bytes_per_owner,
            ),
            waiters.publish,
        )
        parts = Services(
            config=self._config,
            db=self._db,
            scheduler=scheduler,
            waiters=waiters,
            keyring=self._keyring,
            signer=self._signer,
            admission=self._admission,
        )
        self._services = app.state.services = parts
        await asyncio.to_thread(scheduler.start)
        janitor = Janitor(parts)
        chores = (janitor.run(), self._watch(parts), collecting.look_at_everything())
        tasks = [asyncio.create_task(chore) for chore in chores]
        try:
            yield
        finally:
            self._begin_drain()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(scheduler.stop, self._config.drain_s)
            await janitor.last_round()

    async def _watch(self, parts: Services) -> None:
        """Ends the server if its engine can never start."""
        while not parts.scheduler.is_ready():
            self._fatal = parts.scheduler.fatal()
            if self._fatal is not None:
                self.stop()
                return
            await asyncio.sleep(0.1)

    def _begin_drain(self) -> None:
        if self._services is not None and not self._services.is_draining:
            self._services.is_draining = True
            self._services.waiters.close()

    def _first_key(self) -> str | None:
        """The bootstrap key kept, or a key made because there is none; the latter is returned."""
        bootstrap_key = self._config.bootstrap_key
        if bootstrap_key is not None:
            if not bootstrap_key.startswith(keys.PREFIX):
                raise ConfigError(
                    f"The bootstrap key must begin with {keys.PREFIX!r}.",
                    hint="The official client sends no other keys.",
                    code="bad-bootstrap-key",
                )
            self._db.write(keys.add, bootstrap_key, name="bootstrap", owner="bootstrap")
            return None
        if any(key.revoked_at is None for key in self._db.read(keys.list_all)):
            return None
        key = keys.new_key()
        self._db.write(keys.add, key, name="first")
        return key


class _Http(uvicorn.Server):
    """uvicorn that drains as soon as it is asked to stop, and ends without the signal's code."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes SIGINT and SIGTERM while serving; a second one does not wait for open requests."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.drain()

    def drain(self) -> None:
        self.should_exit = True
        with suppress(RuntimeError):  # the loop may have ended already
            self._loop.call_soon_threadsafe(self._on_exit)


def _listen(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # The protocol is named so that asyncio switches off the delay of small packets.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Cannot listen on {config.host}:{config.port}: {error.strerror}.",
            hint="Choose another --port, or 0 for any.",
            code="port-in-use",
        ) from error
    listener.listen(2048)
    return listener


def _make_private(folder: Path) -> None:
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def _lock_folder(folder: Path) -> IO[str]:
    with _usable(folder):
        handle = (folder / "lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise ConfigError(
            f"Another server uses the data folder {folder}.",
            hint="Stop it, or choose another --data-dir.",
            code="data-dir-in-use",
        ) from error
    try:
        with _usable(folder):
            handle.truncate(0)
            handle.write(str(os.getpid()))
            handle.flush()
    except ConfigError:
        with suppress(OSError):  # what was not written is tried again at the end
            handle.close()
        raise
    return handle


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"The data folder {folder} cannot be used: {error.strerror}.",
            hint="Make room or make it writable, or choose another --data-dir.",
            code="data-dir-unusable",
        ) from error
