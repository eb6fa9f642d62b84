"""An engine in a worker that dialled in: the server's side.

Folders are named by kind and id, because the worker keeps them elsewhere: it writes to the depot
what it saves, and reads from there what it loads.
"""

from __future__ import annotations

import re
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from tinkex.engine.errors import EngineError, EngineFailure
from tinkex.engine.interface import ROLES, AdapterInfo, Role, StateScope
from tinkex.engine.process.client import EngineClient
from tinkex.engine.process.codec import PING, encode
from tinkex.engine.process.liveness import HANG_S, PING_S
from tinkex.engine.remote.listener import JoinedWorker

__all__ = ["RemoteEngine", "local_folder"]

_MAX_FRAME_BYTES = 1 << 31
_NAME = re.compile(r"[a-z]{1,32}/[0-9a-f]{32}")


class RemoteEngine(EngineClient):
    """The engine of a joined worker. Its connection is closed when it does not answer pings.

    Raises:
        EngineFailure: the worker is already disconnected.
    """

    def __init__(
        self, worker: JoinedWorker, *, ping_s: float = PING_S, hang_s: float = HANG_S
    ) -> None:
        self.info = worker.info
        self._address = worker.address
        super().__init__(
            worker.connection,
            encode(PING),
            ping_s=ping_s,
            hang_s=hang_s,
            max_frame_bytes=_MAX_FRAME_BYTES,
        )

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def worker(self) -> str:
        return f"{self.info.name} at {self._address}, process {self.info.pid}"

    @property
    def worker_name(self) -> str:
        return self.info.name

    @property
    def worker_host(self) -> str:
        return self.info.host

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(each for each in ROLES if each in self.info.roles)

    def save_adapter(self, adapter_id: str, folder: Path, scope: StateScope = "weights") -> int:
        return super().save_adapter(adapter_id, _name(folder), scope)

    def start_saving(self, adapter_id: str, folder: Path, scope: StateScope) -> Future[int]:
        return super().start_saving(adapter_id, _name(folder), scope)

    def load_adapter(
        self, adapter_id: str, model: str, folder: Path, scope: StateScope = "weights"
    ) -> AdapterInfo:
        return super().load_adapter(adapter_id, model, _name(folder), scope)

    def load_sampler(self, sampler_id: str, model: str, folder: Path) -> None:
        super().load_sampler(sampler_id, model, _name(folder))

    def _call(self, method: str, *arguments: object) -> Any:
        try:
            return super()._call(method, *arguments)
        except EngineError:
            raise
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            # A worker of another build, or a malicious one: none of its answers can be used.
            self._hang_up()
            raise EngineFailure(
                f"The worker {self.info.name} sent a malformed answer to {method}: {error}",
                code="engine-died",
            ) from error

    def _kill_worker(self) -> None:
        """Does nothing: the worker is not a child of this server, and reconnects by itself."""

    def _end_worker(self) -> None:
        """Does not wait: the worker keeps running."""

    def _lost(self, hung_s: float | None) -> EngineFailure:
        where = f"The worker {self.info.name} at {self._address}"
        if hung_s is not None:
            return EngineFailure(
                f"{where} did not answer for {hung_s:.0f} s; the connection was closed.",
                code="engine-hung",
            )
        return EngineFailure(f"{where} has disconnected.", code="engine-disconnected")


def _name(folder: Path) -> Path:
    return Path(folder.parent.name) / folder.name


def local_folder(root: Path, name: Path) -> Path:
    """Returns the worker's own path of a folder that the server names.

    Raises:
        EngineFailure: the name is not that of a folder of adapters.
    """
    if _NAME.fullmatch(str(name)) is None:
        raise EngineFailure(f"{str(name)!r} is not a folder of adapters.", code="bad-folder")
    return root / name
