"""The actor that Ray places on a node: it runs `tinkex worker` and restarts it when it ends.

Ray imports this class from the installed package; no code is pickled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import msgspec

from tinkex.launch.settings import WorkerSpec

__all__ = ["WorkerActor"]

_LONGEST_WAIT_S = 30.0
_LOOK_EVERY_S = 1.0


class WorkerActor:
    """Exists as long as its worker is wanted. `spec` is the JSON of a `WorkerSpec`."""

    def __init__(self, name: str, role: str, spec: str, token: str) -> None:
        self._token = token.encode()
        self._command = _worker_command(name, role, msgspec.json.decode(spec, type=WorkerSpec))
        # The engine does not use Ray, whose variables may hold the cluster's own token.
        ours = {**os.environ}
        self._environment = {
            key: value for key, value in ours.items() if not key.startswith("RAY_")
        }
        self._child: subprocess.Popen[bytes] | None = None
        for thread in (self._keep_running, self._end_with_raylet):
            threading.Thread(target=thread, daemon=True, name="tinkex-actor").start()

    def pids(self) -> list[int]:
        """The process ids of the actor and its worker; returns once the actor runs."""
        child = self._child
        return [os.getpid(), *([] if child is None else [child.pid])]

    def _keep_running(self) -> None:
        """The thread that is the worker's parent; it runs as long as the actor's process."""
        wait_s = 1.0
        while True:
            began = time.monotonic()
            self._start().wait()
            lived_long = time.monotonic() - began > 60.0
            wait_s = 1.0 if lived_long else min(2 * wait_s, _LONGEST_WAIT_S)
            time.sleep(wait_s)

    def _start(self) -> subprocess.Popen[bytes]:
        """Starts the worker. Its token is sent through a pipe, so that it is on no command line, in
        no environment and in no file."""
        bound = [sys.executable, "-m", "tinkex.launch.bound_child", str(os.getpid())]
        child = subprocess.Popen(  # noqa: S603
            [*bound, *self._command], env=self._environment, stdin=subprocess.PIPE
        )
        assert child.stdin is not None
        try:
            child.stdin.write(self._token + b"\n")
            child.stdin.close()
        except BrokenPipeError:
            pass  # it has already ended; the exit is handled like any other
        self._child = child
        return child

    def _end_with_raylet(self) -> None:
        """Ends the actor when its raylet has ended: Ray then starts the actor on another node, or a
        new raylet on this node assigns the same CPUs and GPUs again."""
        raylet = os.getppid()
        while os.getppid() == raylet:
            time.sleep(_LOOK_EVERY_S)
        os._exit(1)


def _worker_command(name: str, role: str, spec: WorkerSpec) -> list[str]:
    command = [sys.executable, "-m", "tinkex", "worker", "--join", spec.join, "--name", name]
    command += ["--role", role, "--token-file", "/dev/stdin"]
    for model in spec.models:
        command += ["--model", model]
    for loss in spec.losses:
        command += ["--loss", loss]
    command += ["--device", spec.device, "--dtype", spec.dtype]
    if spec.num_threads is not None:
        command += ["--num-threads", str(spec.num_threads)]
    if spec.tls_ca is not None:
        command += ["--tls-ca", spec.tls_ca]
    return command
