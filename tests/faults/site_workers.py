"""The two workers of a site: children of the server, or processes that dial in, each by a
`FaultyLink` of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal, Self

from tests.server.children import children_of
from tests.support.faulty_link import FaultyLink
from tests.support.waiting import wait_until
from tinkex.server.config import ServerConfig
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.gate.signing_secret import ensure_secret_file
from tinkex.server.models.worker_command import parse_address

__all__ = ["KINDS", "LocalWorkers", "RemoteWorkers", "SiteKind", "Workers"]

SiteKind = Literal["local", "remote", "roles"]
KINDS: tuple[SiteKind, ...] = ("local", "remote", "roles")
"""Children of the server; workers that dial in; such of which one trains and one samples."""

_ROLES = (("--role", "train"), ("--role", "sample"))


class Workers:
    """Two workers, by number."""

    def __init__(self) -> None:
        self.links: list[FaultyLink] = []
        """By which each reaches the server, if there is a network between."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what is still there."""

    def kill(self, numbers: list[int]) -> None:
        """Ends workers as `kill -9` does; others are started in their place."""
        raise NotImplementedError

    def send(self, numbers: list[int], signum: signal.Signals) -> None:
        """Sends workers a signal."""
        raise NotImplementedError

    def require_running(self) -> None:
        """Fails if a worker has ended by itself."""


class LocalWorkers(Workers):
    """Children of the server, which starts others in their place."""

    def __init__(self, server: EmbeddedServer) -> None:
        super().__init__()
        self._server = server

    def kill(self, numbers: list[int]) -> None:
        wait_until(lambda: len(children_of(self._server.pid)) == 2)
        self.send(numbers, signal.SIGKILL)

    def send(self, numbers: list[int], signum: signal.Signals) -> None:
        pids = children_of(self._server.pid)
        for number in numbers:
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(pids[number], signum)


class RemoteWorkers(Workers):
    """Processes of `tinkex worker`, each with a data folder of its own."""

    def __init__(self, config: ServerConfig, folder: Path, *, has_roles: bool) -> None:
        super().__init__()
        assert config.listen_workers is not None
        self._config, self._folder, self._has_roles = config, folder, has_roles
        target = parse_address(config.listen_workers, "listen_workers")
        self.links = [FaultyLink(target), FaultyLink(target)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._config.data_dir.mkdir(parents=True, exist_ok=True)
        ensure_secret_file(self._config.data_dir / "worker-token")
        for number, link in enumerate(self.links):
            self._stack.enter_context(link)
            self._stack.callback(self._end, number)
            self._start(number)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill(self, numbers: list[int]) -> None:
        for number in numbers:
            self._end(number)
        for number in numbers:
            self._start(number)

    def send(self, numbers: list[int], signum: signal.Signals) -> None:
        for number in numbers:
            self._processes[number].send_signal(signum)

    def require_running(self) -> None:
        for number, process in self._processes.items():
            log = (self._folder / f"worker-{number}.log").read_text(errors="replace")
            assert process.poll() is None, log[-3000:]

    def _end(self, number: int) -> None:
        process = self._processes.pop(number, None)
        if process is not None:
            process.kill()
            process.wait()

    def _start(self, number: int) -> None:
        command = [sys.executable, "-m", "tinkex", "worker", "--num-threads", "1"]
        command += ["--join", f"127.0.0.1:{self.links[number].port}"]
        command += ["--token-file", str(self._config.data_dir / "worker-token")]
        command += ["--name", f"worker-{number}", "--device", self._config.device]
        command += ["--data-dir", str(self._folder / f"worker-{number}")]
        command += _ROLES[number] if self._has_roles else ()
        for model in self._config.models:
            command += ["--model", f"{model.name}={model.source}"]
        with (self._folder / f"worker-{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ}
            )
