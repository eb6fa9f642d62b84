"""Numbers of safetensors files to float32 and back, bfloat16 too, which numpy does not have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["WIDTHS", "decoded", "encoded"]

WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a number of the types that can be changed."""

_NUMPY = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def decoded(raw: bytes, dtype: str) -> npt.NDArray[np.float32]:
    """The numbers in these bytes."""
    if dtype == "BF16":
        halves = np.frombuffer(raw, np.uint16).astype(np.uint32)
        return (halves << np.uint32(16)).view(np.float32)
    return np.frombuffer(raw, _NUMPY[dtype]).astype(np.float32)


def encoded(numbers: npt.NDArray[np.float32], dtype: str) -> bytes:
    """The bytes of these numbers, each rounded to the nearest of the type, ties to even."""
    if dtype != "BF16":
        return numbers.astype(_NUMPY[dtype]).tobytes()
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    rounded[np.isnan(numbers)] = 0x7FC0  # rounding could carry its last bit away
    return rounded.tobytes()
