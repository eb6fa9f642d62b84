"""An operating system that fails to order, for servers in processes of their own.

A small library, built from `broken_os.c` where there is a C compiler, is preloaded into the server
and its engine. It moves their wall clock and fails their calls; this is the side that gives orders.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["ALL_WRITING", "BrokenOs"]

SYNC, WRITE, OPEN, MAKE, RENAME, REMOVE = 1, 2, 4, 8, 16, 32
ALL_WRITING = WRITE | OPEN | MAKE | RENAME | REMOVE
CALLS = {"sync": SYNC, "write": WRITE, "open": OPEN, "make": MAKE, "rename": RENAME}

_ORDERS = struct.Struct("<qiiiiii4096s")
_SOURCE = Path(__file__).with_suffix(".c")


class BrokenOs:
    """Gives orders to every process started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._library = _build(folder)
        self._orders = folder / "orders"
        self._orders.write_bytes(bytes(_ORDERS.size))
        with self._orders.open("r+b") as handle:
            self._map = mmap.mmap(handle.fileno(), _ORDERS.size)
        self._clock_offset_s = 0

    @property
    def environment(self) -> dict[str, str]:
        """What has to be in the environment of the process to break."""
        return {"LD_PRELOAD": str(self._library), "TINKEX_TEST_BROKEN_OS": str(self._orders)}

    def jump(self, seconds: int) -> None:
        """Moves the wall clock, by so much from where it is."""
        self.set_clock(self._clock_offset_s + seconds)

    def set_clock(self, offset_s: int) -> None:
        """Has the wall clock be so far from the true one."""
        self._clock_offset_s = offset_s
        self._map[:8] = struct.pack("<q", self._clock_offset_s)

    def fail(self, calls: int, error: int, below: Path, *, skip: int = 0, times: int = -1) -> None:
        """Has these calls fail below the path: `times` of them after `skip` that succeed."""
        self.heal()
        orders = (0, error, skip, times, 0, 0, str(below).encode())
        self._map[8:] = _ORDERS.pack(0, *orders)[8:]
        self._map[8:12] = struct.pack("<i", calls)  # last: the other side acts on it

    def heal(self) -> None:
        """Lets every call succeed."""
        self._map[8:12] = bytes(4)

    @property
    def num_failed(self) -> int:
        """How many calls failed since the last order."""
        return int(struct.unpack_from("<i", self._map, 28)[0])

    @property
    def num_seen(self) -> int:
        """How many calls the last order was looked up for."""
        return int(struct.unpack_from("<i", self._map, 24)[0])


def _build(folder: Path) -> Path:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux preloads libraries this way")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the broken operating system with")
    library = folder / "broken_os.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return library
