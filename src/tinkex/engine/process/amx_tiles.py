"""Finds AMX tiles that a virtual machine announces without describing them.

Some hypervisors show AMX among the processor's features and leave the description of its tiles
(CPUID leaf 0x1D) empty. oneDNN then configures none, and its first product in bfloat16 ends the
process with an illegal instruction. Does not import torch: the answer is needed before that.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from typing import NamedTuple

__all__ = ["WITHOUT_TILES", "Registers", "has_broken_tiles", "is_broken"]

WITHOUT_TILES = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
"""Environment variables with which oneDNN uses everything but tiles."""

_FEATURES, _TILES = 7, 0x1D
_AMX_TILE = 1 << 24  # of EDX

# void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t registers[4]), in the System V convention.
_CODE = bytes.fromhex(
    "53"  # push rbx
    "89f8"  # mov eax, edi
    "89f1"  # mov ecx, esi
    "4989d0"  # mov r8, rdx
    "0fa2"  # cpuid
    "418900"  # mov [r8], eax
    "41895804"  # mov [r8 + 4], ebx
    "41894808"  # mov [r8 + 8], ecx
    "4189500c"  # mov [r8 + 12], edx
    "5b"  # pop rbx
    "c3"  # ret
)


class Registers(NamedTuple):
    """The registers that CPUID returns for one leaf."""

    eax: int
    ebx: int
    ecx: int
    edx: int


def has_broken_tiles() -> bool:
    """Returns whether this machine announces AMX tiles that oneDNN cannot configure."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return False
    try:
        highest = _cpuid(0).eax
        features = _cpuid(_FEATURES) if highest >= _FEATURES else Registers(0, 0, 0, 0)
        tiles = _cpuid(_TILES) if highest >= _TILES else Registers(0, 0, 0, 0)
    except OSError:  # a hardened system maps no code that is made at run time
        return False
    return is_broken(features, tiles)


def is_broken(features: Registers, tiles: Registers) -> bool:
    """Returns whether these registers announce tiles without describing a palette."""
    return bool(features.edx & _AMX_TILE) and tiles.eax == 0


def _cpuid(leaf: int) -> Registers:
    access = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    with mmap.mmap(-1, mmap.PAGESIZE, prot=access) as page:
        page.write(_CODE)
        start = ctypes.c_char.from_buffer(page)
        function = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(
            ctypes.addressof(start)
        )
        registers = (ctypes.c_uint32 * 4)()
        function(leaf, 0, ctypes.addressof(registers))
        del start  # the page cannot be closed while it is referred to
    return Registers(*registers)
