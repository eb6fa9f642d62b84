"""Reading GGUF files: metadata, and tensors as float32. Knows the format, not the models.

Types read: F32, F16, Q4_0, Q4_1, Q8_0. The file is mapped; tensors are dequantized on access.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tinkex.engine.errors import EngineUserError

__all__ = ["GgufFile"]

Floats = npt.NDArray[np.float32]

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_BLOCK = 32  # numbers in one quantized block
_MAX_AXES = 8
_BAD_BYTES = (struct.error, KeyError, ValueError, OverflowError, RecursionError)
"""The exceptions that reading malformed bytes can raise."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Offset, type and shape of a tensor; `shape` is in numpy's order, slowest axis first."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GgufFile:
    """A GGUF file's metadata and tensors.

    Raises:
        EngineUserError: it is not a GGUF file of version 2 or 3.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._read_head()
        except _BAD_BYTES as error:
            raise self._bad(f"is damaged: {str(error)[:200]}") from error

    def _read_head(self) -> None:
        self._place = 0
        magic, version = self._take(4), self._scalar("<I")
        if magic != _MAGIC or version not in (2, 3):
            raise self._bad("is not a GGUF file of version 2 or 3")
        num_tensors, num_keys = self._scalar("<Q"), self._scalar("<Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("<I"))
        self._entries = dict(self._read_entry() for _ in range(num_tensors))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise self._bad(f"has general.alignment={alignment!r:.40}")
        self._data_start = -(-self._place // alignment) * alignment

    def names(self) -> list[str]:
        """The names of the tensors in the file."""
        return list(self._entries)

    def tensor(self, name: str) -> Floats:
        """Returns the tensor as float32, slowest axis first.

        Raises:
            EngineUserError: it is stored in a type this reader does not know.
        """
        entry = self._entries[name]
        if entry.kind not in _READERS:
            raise EngineUserError(
                f"Tensor {name!r} has GGUF type {entry.kind}, which is not read here. "
                "Use a file in F32, F16, Q8_0, Q4_0 or Q4_1.",
                code="bad-model-file",
                field=name,
                value=entry.kind,
            )
        block_bytes, expand = _READERS[entry.kind]
        size = math.prod(entry.shape) * block_bytes // _BLOCK
        start = self._data_start + entry.offset
        try:
            raw = np.frombuffer(self._map, np.uint8, size, start)
            return expand(raw).reshape(entry.shape)
        except _BAD_BYTES as error:
            raise self._bad(f"ends before its tensor {name[:80]!r}") from error

    def _bad(self, reason: str) -> EngineUserError:
        return EngineUserError(
            f"{self._name} {reason}. Download it again.",
            code="bad-model-file",
            field="path",
            value=self._name,
        )

    def _read_entry(self) -> tuple[str, _Entry]:
        name = self._string()
        num_axes = self._scalar("<I")
        if num_axes > _MAX_AXES:
            raise self._bad(f"has a tensor of {num_axes} dimensions")
        shape = [self._scalar("<Q") for _ in range(num_axes)]
        kind, offset = self._scalar("<I"), self._scalar("<Q")
        return name, _Entry(tuple(reversed(shape)), kind, offset)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            inner, count = self._scalar("<I"), self._scalar("<Q")
            return [self._value(inner) for _ in range(count)]
        return self._scalar(_SCALARS[kind])

    def _scalar(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _string(self) -> str:
        return self._take(self._scalar("<Q")).decode("utf-8")

    def _take(self, size: int) -> bytes:
        self._place += size
        return self._map[self._place - size : self._place]


def _expand_f32(raw: npt.NDArray[np.uint8]) -> Floats:
    return raw.view("<f4").astype(np.float32)


def _expand_f16(raw: npt.NDArray[np.uint8]) -> Floats:
    return raw.view("<f2").astype(np.float32)


def _expand_q8_0(raw: npt.NDArray[np.uint8]) -> Floats:
    blocks = raw.reshape(-1, 34)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return scale * blocks[:, 2:].view(np.int8).astype(np.float32)


def _expand_q4_0(raw: npt.NDArray[np.uint8]) -> Floats:
    blocks = raw.reshape(-1, 18)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    numbers = _nibbles(blocks[:, 2:])
    numbers -= 8
    return scale * numbers


def _expand_q4_1(raw: npt.NDArray[np.uint8]) -> Floats:
    blocks = raw.reshape(-1, 20)
    scale, low = (blocks[:, i : i + 2].copy().view("<f2").astype(np.float32) for i in (0, 2))
    return scale * _nibbles(blocks[:, 4:]) + low


def _nibbles(packed: npt.NDArray[np.uint8]) -> Floats:
    """Unpacks 32 numbers of 0..15 from 16 bytes: all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


# type id -> (bytes of 32 numbers, how to expand them)
_READERS: dict[int, tuple[int, Callable[[npt.NDArray[np.uint8]], Floats]]] = {
    0: (128, _expand_f32),
    1: (64, _expand_f16),
    2: (18, _expand_q4_0),
    3: (20, _expand_q4_1),
    8: (34, _expand_q8_0),
}
