"""Tensors where they lie in safetensors files, read by rows and never whole.

Nothing is read or reserved by what a header claims before that was compared with the file's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tinkex.merging.errors import NotMergeableError
from tinkex.merging.numbers import WIDTHS, decoded

__all__ = ["StoredTensor", "read_header"]

_MAX_HEADER_BYTES = 100_000_000  # as in the safetensors library
_PIECE_BYTES = 4 << 20


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its name, its type as safetensors calls it, and its bytes' place."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int

    def pieces(self) -> Iterator[tuple[int, int, bytes]]:
        """The tensor in runs of whole rows: first row, row behind the last, their bytes."""
        num_rows = self.shape[0] if self.shape else 1
        row_bytes = self.size // num_rows if num_rows else 0
        step = max(1, _PIECE_BYTES // max(1, row_bytes))
        with self.path.open("rb") as file:
            file.seek(self.begin)
            for first in range(0, num_rows if row_bytes else 0, step):
                end = min(num_rows, first + step)
                raw = file.read((end - first) * row_bytes)
                if len(raw) != (end - first) * row_bytes:
                    raise OSError(f"{self.path.name} became shorter while it was read")
                yield first, end, raw

    def numbers(self) -> npt.NDArray[np.float32]:
        """The whole tensor as float32."""
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return decoded(file.read(self.size), self.dtype).reshape(self.shape)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name, in the order in which they lie there.

    Raises:
        NotMergeableError: it is no safetensors file, or it is cut.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
                raise ValueError("it has no header")
            raw: dict[str, msgspec.Raw] = msgspec.json.decode(
                file.read(length), type=dict[str, msgspec.Raw]
            )
        raw.pop("__metadata__", None)
        found = [
            _tensor(name, path, msgspec.json.decode(entry, type=_Entry), 8 + length, size)
            for name, entry in raw.items()
        ]
    except (OSError, ValueError) as error:  # msgspec's and Unicode's errors are ValueErrors
        raise NotMergeableError(f"{path.name} cannot be read: {str(error)[:200]}.") from error
    return {each.name: each for each in sorted(found, key=lambda each: each.begin)}


def _tensor(name: str, path: Path, entry: _Entry, start: int, file_size: int) -> StoredTensor:
    begin, end = entry.data_offsets
    size = end - begin
    is_inside = 0 <= begin <= end and start + end <= file_size
    wanted = math.prod(entry.shape) * WIDTHS.get(entry.dtype, 0)
    if not is_inside or min(entry.shape, default=0) < 0 or (wanted and wanted != size):
        raise ValueError(f"the tensor {name[:200]!r} does not lie inside it")
    return StoredTensor(name, path, entry.dtype, tuple(entry.shape), start + begin, size)
