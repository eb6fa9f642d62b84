"""The actor that Ray places on a node: it runs `tinkex worker` and starts it again when it ends.

Ray imports this class from the installed package; none of our code is pickled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec

from tinkex.launch.settings import WorkerSpec

__all__ = ["WorkerActor"]

_LONGEST_WAIT_S = 30.0


class WorkerActor:
    """Lives as long as its worker should be there. `spec` is the JSON of a `WorkerSpec`."""

    def __init__(self, name: str, role: str, spec: str, token: str) -> None:
        self._is_stopping = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="tinkex-worker-")  # 0700
        token_file = Path(self._folder.name) / "worker-token"
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(token + "\n")
        self._command = _worker_command(name, msgspec.json.decode(spec, type=WorkerSpec))
        self._command += ["--token-file", str(token_file)]
        self._environment = {**os.environ, "TINKEX_WORKER_ROLE": role}
        self._child: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._keep_running, daemon=True, name="tinkex-actor").start()

    def pids(self) -> list[int]:
        """The ids of the actor's process and of its worker's."""
        child = self._child
        return [os.getpid(), *([] if child is None else [child.pid])]

    def _keep_running(self) -> None:
        """The thread whose death ends the worker; it lives as long as the actor's process."""
        wait_s = 1.0
        while not self._is_stopping.is_set():
            bound = [sys.executable, "-m", "tinkex.launch.bound_child", str(os.getpid())]
            command = [*bound, *self._command]
            self._child = subprocess.Popen(command, env=self._environment)  # noqa: S603
            try:
                self._child.wait(timeout=60.0)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            except subprocess.TimeoutExpired:
                wait_s = 1.0
                self._child.wait()
            self._is_stopping.wait(wait_s)


def _worker_command(name: str, spec: WorkerSpec) -> list[str]:
    command = [sys.executable, "-m", "tinkex", "worker", "--join", spec.join, "--name", name]
    for model in spec.models:
        command += ["--model", model]
    for loss in spec.losses:
        command += ["--loss", loss]
    command += ["--device", spec.device, "--dtype", spec.dtype]
    if spec.num_threads is not None:
        command += ["--num-threads", str(spec.num_threads)]
    return command
