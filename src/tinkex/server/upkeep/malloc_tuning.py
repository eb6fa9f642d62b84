"""The C allocator in a server: large blocks go back to the system as soon as they are freed.

glibc raises the size from which a block is mapped by itself, up to 32 MiB, each time such a block
is freed. Bodies of that size then come from the heaps of whichever threads decode them, and what
is freed there stays with the process.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 2**20


def return_large_blocks() -> None:
    """Has blocks of a mebibyte and more mapped by themselves, for as long as the process lives."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it, others need it less
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
