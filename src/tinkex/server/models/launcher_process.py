"""The launcher of workers on a Ray cluster: a child process, started again when it ends."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import msgspec

from tinkex.child_environment import child_environment
from tinkex.launch.settings import LaunchSettings

__all__ = ["LauncherProcess"]

_logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
_STOP_S = 5.0


class LauncherProcess:
    """Keeps a launcher running until closed. The server does not depend on it."""

    def __init__(self, settings: LaunchSettings) -> None:
        self._command = [sys.executable, "-P", "-m", "tinkex.launch.launcher"]
        self._command.append(msgspec.json.encode(settings).decode())
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="tinkex-launcher")
        self._thread.start()

    def close(self) -> None:
        """Ends the launcher; its workers stay on the cluster for the next start."""
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._is_closed.is_set():
            with subprocess.Popen(  # noqa: S603
                self._command, stdin=subprocess.PIPE, env=_environment()
            ) as process:
                lived_long = self._wait_for(process)
            if self._is_closed.is_set():
                return
            wait_s = _FIRST_WAIT_S if lived_long else min(2 * wait_s, _LONGEST_WAIT_S)
            _logger.warning(
                "The launcher of Ray workers has ended (exit code %s); workers that run go on. "
                "It is started again in %g s.",
                process.returncode,
                wait_s,
            )
            self._is_closed.wait(wait_s)

    def _wait_for(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits for the launcher's end or ours; whether it ran for longer than a failed start."""
        num_looks = 0
        while process.poll() is None:
            if self._is_closed.wait(0.2):
                process.terminate()
                try:
                    process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
            num_looks += 1
        return num_looks > 300


def _environment() -> dict[str, str]:
    """Ours with what Ray needs: it binds loopback addresses only with the one variable, reports
    usage to its makers without the other, and its cluster may want a token."""
    return child_environment(
        keep=("RAY_",),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    )
