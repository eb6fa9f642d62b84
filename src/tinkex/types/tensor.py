"""TensorData: a small array of int64 or float32, as the protocol carries it.

The numbers are kept as little-endian bytes, so that encoding a request copies memory instead of
walking lists, and so that a value handed to a request cannot change under it. Knows numpy and torch
only when one of their arrays is given or requested; neither is imported before that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tinkex.errors import ValidationError
from tinkex.types._model_methods import ModelMethods
from tinkex.types._tensor_values import (
    ITEM_BYTES,
    NUMPY_CODES,
    TensorDtype,
    pack,
    read_values,
    unpack,
)

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

__all__ = ["TensorData", "TensorDtype"]


@dataclass(init=False, repr=False, eq=False)
class _TensorForm:
    """The fields of a tensor, as msgspec and `dataclasses` see them."""

    __slots__ = ()
    data: list[Any]
    dtype: TensorDtype
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None


class TensorData(_TensorForm, ModelMethods):
    """An immutable int64 or float32 array, dense or CSR-sparse.

    Values are converted to a `dtype` that is given, also from texts of numbers. Fractions become
    int64 by cutting them towards zero, with a warning.

    >>> TensorData([[1, 2], [3, 4]], "int64").tolist()
    [[1, 2], [3, 4]]
    >>> TensorData([0.5, 1.0]).dtype
    'float32'

    Raises:
        ValidationError: the values do not fit the dtype, or the shape does not fit the values.
    """

    __slots__ = ("_raw", "dtype", "shape", "sparse_col_indices", "sparse_crow_indices")

    dtype: TensorDtype
    shape: list[int] | None
    sparse_crow_indices: list[int] | None
    sparse_col_indices: list[int] | None

    def __init__(
        self,
        data: Any = None,
        dtype: TensorDtype | None = None,
        shape: Sequence[int] | None = None,
        sparse_crow_indices: Sequence[int] | None = None,
        sparse_col_indices: Sequence[int] | None = None,
    ) -> None:
        raw, found_dtype, found_shape = read_values(data, dtype)
        self._set(raw, found_dtype, list(shape) if shape is not None else found_shape)
        self._set_sparse(sparse_crow_indices, sparse_col_indices)
        self._check_size()

    def __post_init__(self) -> None:
        """Called by msgspec alone, which makes a tensor by setting its fields one by one."""
        given: Any = self._raw
        TensorData.__init__(
            self, given, self.dtype, self.shape, self.sparse_crow_indices, self.sparse_col_indices
        )

    def _set(self, raw: bytes, dtype: TensorDtype, shape: list[int] | None) -> None:
        self._raw = raw
        self.dtype = dtype
        self.shape = shape
        self.sparse_crow_indices = None
        self.sparse_col_indices = None

    def _set_sparse(self, crow: Sequence[int] | None, col: Sequence[int] | None) -> None:
        if (crow is None) != (col is None):
            raise ValidationError(
                "A sparse tensor needs both sparse_crow_indices and sparse_col_indices."
            )
        if crow is not None and col is not None:
            self.sparse_crow_indices = [int(i) for i in crow]
            self.sparse_col_indices = [int(i) for i in col]

    def _check_size(self) -> None:
        if self.is_sparse:
            self._check_sparse()
        elif self.shape is not None and (
            any(n < 0 for n in self.shape) or math.prod(self.shape) != self.num_values
        ):
            raise ValidationError(f"shape={self.shape} does not fit {self.num_values} values.")

    def _check_sparse(self) -> None:
        crow, col, shape = self.sparse_crow_indices, self.sparse_col_indices, self.shape
        assert crow is not None
        assert col is not None
        if shape is None or len(shape) != 2 or min(shape) < 0:
            raise ValidationError(f"A sparse tensor needs a 2-D shape, not {shape}.")
        rows, cols = shape
        if len(crow) != rows + 1 or crow[0] != 0 or crow[-1] != len(col):
            raise ValidationError(
                f"sparse_crow_indices must run from 0 to {len(col)} in {rows + 1} steps, "
                f"got {len(crow)} ending in {crow[-1] if crow else None}."
            )
        if any(a > b for a, b in pairwise(crow)):
            raise ValidationError("sparse_crow_indices must never decrease.")
        if len(col) != self.num_values or any(not 0 <= c < cols for c in col):
            raise ValidationError(
                f"sparse_col_indices must name a column below {cols} for each of the "
                f"{self.num_values} values."
            )

    @classmethod
    def from_bytes(
        cls,
        raw: bytes,
        dtype: TensorDtype,
        shape: Sequence[int] | None = None,
        sparse_crow_indices: Sequence[int] | None = None,
        sparse_col_indices: Sequence[int] | None = None,
    ) -> TensorData:
        """The tensor of this `dtype` and `shape` whose little-endian values are `raw`; with
        `sparse_crow_indices` and `sparse_col_indices` they are those of a CSR matrix."""
        if dtype not in ITEM_BYTES or len(raw) % ITEM_BYTES[dtype]:
            raise ValidationError(f"{len(raw)} bytes are no whole number of {dtype} values.")
        tensor = cls.__new__(cls)
        tensor._set(bytes(raw), dtype, list(shape) if shape is not None else None)
        tensor._set_sparse(sparse_crow_indices, sparse_col_indices)
        tensor._check_size()
        return tensor

    @classmethod
    def from_numpy(cls, array: NDArray[Any]) -> TensorData:
        """The tensor with a numpy array's values: floats as float32, signed integers as int64."""
        return cls(array)

    @classmethod
    def from_torch(cls, tensor: torch.Tensor) -> TensorData:
        """The tensor with a torch tensor's values, from any device; bfloat16 is widened."""
        return cls(tensor)

    @classmethod
    def from_torch_sparse(cls, tensor: torch.Tensor, pad_value: int = 0) -> TensorData:
        """The CSR form of a 2-D torch tensor, or the dense form where that is smaller.

        Cells equal to `pad_value` are left out; readers of the tensor must know it.
        """
        if tensor.dim() != 2:
            return cls(tensor)
        values = tensor.detach().to_dense()
        rows, cols = values.shape
        is_listed = values != pad_value
        per_row = is_listed.sum(dim=1).cumsum(0).tolist()
        if rows + 1 + 2 * (per_row[-1] if per_row else 0) >= rows * cols:
            return cls(values)
        col = is_listed.nonzero()[:, 1].tolist()
        return cls(values[is_listed], None, [rows, cols], [0, *per_row], col)

    @property
    def is_sparse(self) -> bool:
        """Whether the values are in CSR form."""
        return self.sparse_crow_indices is not None

    @property
    def raw(self) -> bytes:
        """The values as little-endian bytes, in the order of `data`."""
        return self._raw

    @property
    def num_values(self) -> int:
        """How many values are stored (for CSR: the listed ones)."""
        return len(self._raw) // ITEM_BYTES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """What the tensor weighs on the wire: values, and eight bytes for each index."""
        indices = len(self.sparse_crow_indices or ()) + len(self.sparse_col_indices or ())
        return len(self._raw) + 8 * indices

    @property  # a field in the form, computed here
    def data(self) -> list[Any]:
        """The stored values as a flat list."""
        given: Any = self._raw
        if isinstance(given, bytes):
            return unpack(given, self.dtype)
        return list(given)  # msgspec reads it before `__post_init__`

    @data.setter
    def data(self, values: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if hasattr(self, "_raw"):
            raise AttributeError("A tensor does not change; make another one.")
        self._raw = values  # `__post_init__` makes bytes of them

    @property
    def is_smaller_sparse(self) -> bool:
        """Whether a dense 2-D tensor would have fewer numbers to send in CSR form."""
        if self.is_sparse or self.shape is None or len(self.shape) != 2:
            return False
        rows, cols = self.shape
        nonzero = sum(1 for value in self.data if value)
        return rows + 1 + 2 * nonzero < rows * cols

    def to_sparse(self) -> TensorData:
        """The same 2-D values in CSR form, zeros left out."""
        if self.is_sparse:
            return self
        if self.shape is None or len(self.shape) != 2:
            raise ValidationError(f"Only a 2-D tensor has a CSR form, not shape={self.shape}.")
        rows, cols = self.shape
        flat, values, crow, col = self.data, [], [0], []
        for row in range(rows):
            for column, value in enumerate(flat[row * cols : (row + 1) * cols]):
                if value:
                    values.append(value)
                    col.append(column)
            crow.append(len(values))
        raw = pack(values, self.dtype)
        return TensorData.from_bytes(raw, self.dtype, [rows, cols], crow, col)

    def to_dense(self, fill: float = 0) -> TensorData:
        """The same values with every unlisted cell written out as `fill`."""
        if not self.is_sparse:
            return self
        assert self.shape is not None
        assert self.sparse_crow_indices is not None
        assert self.sparse_col_indices is not None
        rows, cols = self.shape
        flat, listed = [fill] * (rows * cols), self.data
        for row in range(rows):
            for at in range(self.sparse_crow_indices[row], self.sparse_crow_indices[row + 1]):
                flat[row * cols + self.sparse_col_indices[at]] = listed[at]
        return TensorData.from_bytes(pack(flat, self.dtype), self.dtype, [rows, cols])

    def tolist(self, pad_value: int = 0) -> list[Any]:
        """The values as lists nested like the shape; cells that CSR leaves out are `pad_value`."""
        if self.is_sparse:
            return self.to_dense(pad_value).tolist()
        if self.shape is None or len(self.shape) < 2:
            return self.data
        return _nest(self.data, self.shape)

    def to_numpy(self, pad_value: int = 0) -> NDArray[Any]:
        """A numpy array of this dtype and shape; cells that CSR leaves out are `pad_value`."""
        import numpy as np

        if self.is_sparse:
            return self.to_dense(pad_value).to_numpy()
        flat: np.ndarray[Any, Any] = np.frombuffer(self._raw, dtype=NUMPY_CODES[self.dtype])
        return flat.copy() if self.shape is None else flat.reshape(self.shape).copy()

    def to_torch(self, pad_value: int = 0) -> torch.Tensor:
        """A torch tensor of this dtype and shape; cells that CSR leaves out are `pad_value`."""
        import torch

        return torch.from_numpy(self.to_numpy(pad_value))

    def __len__(self) -> int:
        return self.shape[0] if self.shape else self.num_values

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorData):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.dtype, self._raw))

    def __repr__(self) -> str:
        kind = ", sparse" if self.is_sparse else ""
        if self.num_values <= _SHOWN_VALUES:
            return f"TensorData({self.data}, {self.dtype!r}, shape={self.shape}{kind})"
        width = ITEM_BYTES[self.dtype]
        first = ", ".join(map(str, unpack(self._raw[: width * _SHOWN_VALUES], self.dtype)))
        shape = [self.num_values] if self.shape is None else self.shape
        return f"<TensorData {self.dtype} {shape} [{first}, ...]{kind}>"

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            setattr(self, name, value)


_SHOWN_VALUES = 8


def _nest(flat: list[Any], shape: Sequence[int]) -> list[Any]:
    if len(shape) == 1:
        return flat
    step = math.prod(shape[1:])
    return [_nest(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]
