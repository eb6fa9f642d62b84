"""Safetensors files in parts, so that the writer can hash and sync as it goes.

Reading is left to the safetensors library, which checks what it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["tensor_chunks"]

_TYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8"}
_ALIGN = 8


def tensor_chunks(tensors: Mapping[str, npt.NDArray[np.generic]]) -> Iterator[memoryview]:
    """Yields the parts of a file that holds these tensors, in order."""
    # The widest first, so that every tensor begins where its type may; then by name.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    arrays = [np.ascontiguousarray(tensors[name]) for name in names]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in zip(names, arrays, strict=True):
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _TYPES[array.dtype.name],
            "shape": tensors[name].shape,
            "data_offsets": (begin, end),
        }
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % _ALIGN)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for array in arrays:
        if array.nbytes:
            yield array.reshape(-1).view(np.uint8).data
