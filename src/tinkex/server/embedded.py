"""A server for a demo or a test: started in a child process, gone when the block ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

import msgspec

from tinkex.child_environment import PROXY_NAMES, child_environment
from tinkex.errors import ServerError
from tinkex.server.config import ServerConfig
from tinkex.server.process import Started
from tinkex.store.keys import new_key

_DEPOT_NAMES = ("AWS_", "GOOGLE_", "AZURE_")


class EmbeddedServer:
    """A running server: `base_url`, `api_key`, and signals to stop or kill it.

        with EmbeddedServer(ServerConfig(data_dir=folder, models=models)) as server:
            client = tinker.ServiceClient(base_url=server.base_url, api_key=server.api_key)

    The port is free to choose (0) unless the config names one; started again, the same object
    keeps its port and key.

    Raises:
        ServerError: the server did not start in time; the message ends with its last log lines.
    """

    def __init__(self, config: ServerConfig, *, start_timeout_s: float = 120.0) -> None:
        self.api_key = config.bootstrap_key or new_key()
        self._config = msgspec.structs.replace(config, bootstrap_key=self.api_key)
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.NamedTemporaryFile("ab", prefix="tinkex-", suffix=".log")  # noqa: SIM115  closed in close()
        self.base_url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the server and returns once it can take work; a standby, once it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tinkex.server"],
            # The config has its keys; models may be fetched from the hub, through a proxy, and a
            # depot's credentials are in its store's own variables.
            env=child_environment(keep=("HF_", "HUGGING_FACE_", *PROXY_NAMES, *_DEPOT_NAMES)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # The pipe stays open: the server ends when it closes, so it cannot outlive this process.
        self._process.stdin.write(msgspec.json.encode(self._config, enc_hook=str) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise self._failure("The server ended while starting.")
        self.base_url = msgspec.json.decode(line, type=Started).url
        port = int(self.base_url.rpartition(":")[2])
        self._config = msgspec.structs.replace(self._config, port=port)
        if not self._config.is_standby:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Returns once the server can take work."""
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            if not self.is_running:
                raise self._failure("The server ended while starting.")
            if self.is_ready():
                return
            time.sleep(0.05)
        raise self._failure(f"The server was not ready within {self._start_timeout_s:g} s.")

    def is_ready(self) -> bool:
        """Whether the server can take work now."""
        try:
            urllib.request.urlopen(f"{self.base_url}/api/v1/healthz", timeout=5).close()  # noqa: S310
        except (urllib.error.URLError, OSError):
            return False
        return True

    def stop(self) -> int:
        """Drains the server, waits for its end, and returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(60)
        self._close_pipes()
        return code

    def kill(self) -> None:
        """Ends the server as `kill -9` does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def close(self) -> None:
        """Stops the server if it runs."""
        if self.is_running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
            if self.is_running:
                self.kill()
        self._close_pipes()
        self._log.close()

    def log(self) -> str:
        """What the server has logged so far."""
        return Path(self._log.name).read_text(errors="replace")

    def _failure(self, message: str) -> ServerError:
        return ServerError(f"{message}\n{self.log()[-2000:]}")

    def _close_pipes(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
