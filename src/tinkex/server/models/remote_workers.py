"""Remote workers of this server: which are accepted, and how a slot gets one."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tinkex.engine.errors import NoWorkerError, server_ending
from tinkex.engine.interface import ROLES, Engine
from tinkex.engine.model.folder_digest import folder_digest
from tinkex.engine.remote.engine import RemoteEngine
from tinkex.engine.remote.handshake import FolderPlace, RemoteWorkerInfo
from tinkex.engine.remote.listener import WorkerListener
from tinkex.errors import ConfigError
from tinkex.server.config import ServerConfig
from tinkex.server.gate.signing_secret import SecretFile, ensure_secret_file
from tinkex.server.models.engine_factory import find_model
from tinkex.server.models.worker_command import parse_address
from tinkex.version import __version__

__all__ = ["RemoteWorkers"]

_logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5

_PATIENCE_S = 3.0
"""A slot that waits for so long lets others have the operations that it has taken."""


class RemoteWorkers:
    """Listens for workers until closed.

    Raises:
        ConfigError: nothing can listen there, or the certificate cannot be used.
    """

    def __init__(self, config: ServerConfig, place: FolderPlace) -> None:
        assert config.listen_workers is not None
        self._config = config
        self._digests = _local_digests(config)  # of each base model, as the first worker has it
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self.token_file = config.path_of_worker_token
        is_named = config.worker_token_file is not None
        if not is_named:  # a named one that is missing was not mounted: workers have another
            ensure_secret_file(self.token_file)
        address = parse_address(config.listen_workers, "--listen-workers")
        try:
            self._listener = WorkerListener(
                address,
                SecretFile(self.token_file, may_be_link=is_named).newest(),
                place,
                check=self.why_not,
                tls=_tls_context(config),
            )
        except OSError as error:
            raise ConfigError(
                f"Nothing can listen for workers on {config.listen_workers}: {error}.",
                hint="Choose another --listen-workers.",
                code="cannot-listen",
            ) from error

    @property
    def port(self) -> int:
        """The port that workers dial."""
        return self._listener.port

    def engine_factories(self) -> list[Callable[[], Engine]]:
        """One for each slot that workers from elsewhere can have."""
        return [self.start_engine] * self._config.max_remote_workers

    def start_engine(self) -> Engine:
        """The engine of the next worker that has dialled in; waits for one.

        Raises:
            NoWorkerError: none has come for a while.
            ServerEndingError: the server is ending.
            EngineFailure: the worker was lost at once.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while not self._is_closed.is_set():
            worker = self._listener.take(_LOOK_EVERY_S)
            if worker is not None:
                return RemoteEngine(
                    worker, ping_s=self._config.engine_ping_s, hang_s=self._config.engine_hang_s
                )
            if time.monotonic() > deadline:
                raise NoWorkerError("No worker has come.", code="no-worker")
        raise server_ending()

    def close(self) -> None:
        """Listens no more; calls of slots that wait for a worker fail."""
        self._is_closed.set()
        self._listener.close()

    def why_not(self, info: RemoteWorkerInfo) -> str | None:
        """Why the server does not take a worker, or None."""
        if info.version != __version__:
            return f"It is version {info.version}; this server is {__version__}. Install that one."
        unknown = [each for each in info.roles if each not in ROLES]
        if unknown or not info.roles:
            named = repr(unknown[0]) if unknown else "none"
            return f"Its role is {named}. Give it --role {', '.join(ROLES)}, or both."
        missing = [model.name for model in self._config.models if model.name not in info.models]
        if missing:
            return (
                f"It does not hold the model {missing[0]!r}, which this server serves. "
                f"Give it --model {missing[0]}=FOLDER."
            )
        with self._lock:
            for name, digest in info.models.items():
                known = self._digests.get(name, digest)
                if known != digest:
                    return (
                        f"Its model {name!r} is not the one that other workers hold under that "
                        "name. Give all of them the same files."
                    )
            self._digests.update(info.models)
        return None


def _local_digests(config: ServerConfig) -> dict[str, str]:
    """The digests of the models that workers on this machine hold."""
    if config.workers == 0 or config.device.partition(":")[0] == "null":
        return {}
    return {
        model.name: folder_digest(find_model(model, config.data_dir)) for model in config.models
    }


def _tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    if config.workers_tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key: Path | None = config.workers_tls_key
    try:
        context.load_cert_chain(config.workers_tls_cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"The certificate {config.workers_tls_cert} cannot be used: {error}.",
            hint="Give --workers-tls-cert and --workers-tls-key as PEM files that belong together.",
            code="bad-certificate",
        ) from error
    return context
