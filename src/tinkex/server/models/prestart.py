"""The engine's process, begun while the server itself is still being imported. Quick to import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tinkex.engine.process import spawn
from tinkex.engine.process.spawn import BegunWorker

__all__ = ["worker_begun"]


@contextmanager
def worker_begun(device: str) -> Iterator[BegunWorker | None]:
    """A worker for an engine on this device, ended at the end; None if it would import no torch."""
    if not _imports_torch(device):
        yield None
        return
    worker = spawn.begin(with_torch=True)
    try:
        yield worker
    finally:
        worker.close()


def _imports_torch(device: str) -> bool:
    """Whether an engine on it will; what is not installed is said in better words later."""
    is_null = device.partition(":")[0] == "null"
    return not is_null and all(find_spec(name) is not None for name in ("numpy", "torch"))
