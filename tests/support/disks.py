"""A real disk that can run full: a small tmpfs, mounted where the tests may mount one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["SmallDisk", "small_disk"]

_CHUNK = 64 * 1024


class SmallDisk:
    """A mounted disk of a few megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def free_bytes(self) -> int:
        """What can still be written."""
        state = os.statvfs(self.path)
        return state.f_bavail * state.f_frsize

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Writes until nothing more fits, or until so much is left."""
        with self._ballast.open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while (room := self.free_bytes() - leave_bytes) > 0:
                ballast.write(bytes(min(_CHUNK, room)))

    def relieve(self) -> None:
        """Takes away what `fill` wrote."""
        self._ballast.unlink(missing_ok=True)

    def set_read_only(self, is_read_only: bool) -> None:
        """Mounts it anew; a disk with files open for writing cannot be made read-only."""
        mode = "ro" if is_read_only else "rw"
        _run("mount", "-o", f"remount,{mode}", str(self.path))


@contextlib.contextmanager
def small_disk(path: Path, *, size_mb: int) -> Iterator[SmallDisk]:
    """A fresh disk at the path; the test is skipped where it may not be mounted."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    path.mkdir(parents=True, exist_ok=True)
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no small disk can be mounted here: {error.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
