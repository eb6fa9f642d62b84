"""Workers with the null engine that dial in to a listener on loopback, in threads or processes."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tinkex.engine.interface import EngineFingerprint
from tinkex.engine.null import NullEngine
from tinkex.engine.remote.handshake import FolderPlace, RemoteWorkerInfo
from tinkex.engine.remote.listener import JoinedWorker, WorkerListener
from tinkex.engine.remote.worker import DialConfig, run_worker

TOKEN = b"t" * 32
INFO = RemoteWorkerInfo(
    name="gpu-1",
    host="elsewhere",
    pid=1,
    models={"null": "digest"},
    fingerprint=EngineFingerprint(device="null", tinkex_version="0"),
)


def place_at(root: Path) -> FolderPlace:
    """A folder that both sides see."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "tinkex-depot-id").write_text("database")
    return FolderPlace(root=str(root), depot=None, database_id="database")


def config_for(port: int, tmp_path: Path, token: bytes = TOKEN) -> DialConfig:
    return DialConfig(host="127.0.0.1", port=port, token=token, cache_dir=tmp_path / "cache")


@contextmanager
def listening(
    place: FolderPlace,
    *,
    check: Callable[[RemoteWorkerInfo], str | None] = lambda _: None,
    tls: ssl.SSLContext | None = None,
) -> Iterator[WorkerListener]:
    listener = WorkerListener(("127.0.0.1", 0), TOKEN, place, check=check, tls=tls)
    try:
        yield listener
    finally:
        listener.close()


class WorkerThread:
    """A worker in a thread of this process."""

    def __init__(self, config: DialConfig, tls: ssl.SSLContext | None = None) -> None:
        self.engine = NullEngine()
        self.error: Exception | None = None
        self._stopping = threading.Event()
        self._config, self._tls = config, tls
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> WorkerThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(20)
        assert not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(20)

    def _run(self) -> None:
        try:
            run_worker(self.engine, INFO, self._config, self._stopping, self._tls)
        except Exception as error:
            self.error = error


def next_worker(listener: WorkerListener) -> JoinedWorker:
    worker = listener.take(60)
    assert worker is not None
    return worker
