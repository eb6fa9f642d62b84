"""Starts the process of an engine early, before its options are known.

With `--with-torch` the worker imports torch at once, which takes longer than anything else at a
start, while its parent imports its own modules. It ends when the connection does. Quick to import.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import NamedTuple

from tinkex.child_environment import child_environment
from tinkex.engine.process.amx_tiles import WITHOUT_TILES, has_broken_tiles

__all__ = ["ENVIRONMENT", "MODULE", "BegunWorker", "begin"]

MODULE = "tinkex.engine.process.worker"

ENVIRONMENT = {
    # Waiting threads spin for a tenth of a millisecond; `openmp_spin` says when not.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "10000",
    # Freed memory stays with the process: a pass would spend its time getting the same pages again.
    # A chunk of logits is the largest thing that comes and goes.
    "MALLOC_MMAP_THRESHOLD_": str(2**26),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    # oneDNN keeps a compiled product for every shape it has met, half a megabyte each, and torch
    # the same again for every thread: 1024 by default, which sequences of all lengths do fill. A
    # step needs a dozen, many times over; making one anew takes a fraction of a step.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
    # Huge pages are made whole at the first touch, and of a new adapter half is never touched.
    "NUMPY_MADVISE_HUGEPAGE": "0",
    **(WITHOUT_TILES if has_broken_tiles() else {}),
}
"""Environment of a worker, unless set already: its libraries read it at import."""


class BegunWorker(NamedTuple):
    """A started worker that waits for the options of its engine."""

    process: subprocess.Popen[bytes]
    connection: socket.socket

    def close(self) -> None:
        """Ends a worker that is not needed; does nothing if it has ended."""
        self.connection.close()
        if self.process.poll() is None:
            self.process.kill()  # it may be in the midst of a long import, and has nothing to lose
            self.process.wait()


def begin(worker: str = MODULE, *, with_torch: bool = False) -> BegunWorker:
    """Starts a fresh interpreter, not a fork: torch's threads do not survive a fork."""
    near, far = socket.socketpair()
    handle = far.fileno()
    command = [sys.executable, "-P", "-m", worker, "--fd", str(handle)]
    if with_torch:
        command.append("--with-torch")
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**ENVIRONMENT, **child_environment(PYTHONPATH=paths)}
    process = subprocess.Popen(command, pass_fds=[handle], env=environment)  # noqa: S603
    far.close()
    return BegunWorker(process, near)
