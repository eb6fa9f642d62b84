"""Tensors inside protobuf messages: `Tensor`, and `BatchedTensor`, which holds one per datum.

Does not know the messages that contain them. Numbers are little-endian bytes on the wire and in
memory, so that a tensor is written without copying its bytes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from tinkex.types.tensor import TensorData, TensorDtype
from tinkex.wire._errors import Malformed
from tinkex.wire._varint import (
    FieldBudget,
    delimited,
    fields,
    packed,
    read_varint,
    to_int64,
    to_ints,
    varint,
)

_NUMBERS: dict[TensorDtype, bytes] = {"float32": b"\x01", "int64": b"\x02"}
_DTYPES: dict[int, tuple[TensorDtype, int]] = {
    1: ("float32", 4),
    2: ("int64", 8),
    3: ("int64", 4),
    4: ("float32", 2),
}
"""By the wire's dtype number: the tensor's dtype, and the bytes of one value on the wire."""

MAX_RANK = 8
"""Maximum dimensions of a tensor."""

_CACHED_HEADER_BYTES = 64


def encode_tensor(tensor: TensorData) -> list[bytes]:
    """Returns a `Tensor` message in parts; the values are not copied."""
    tail = b"\x18" + _NUMBERS[tensor.dtype] + packed(0x22, tuple(tensor.shape or ()))
    if tensor.sparse_crow_indices is None or tensor.sparse_col_indices is None:
        return [b"\x0a" + varint(len(tensor.raw)), tensor.raw, tail]
    values = b"\x0a" + varint(len(tensor.raw)) if tensor.raw else b""
    indices = _indices(0x12, tensor.sparse_crow_indices) + _indices(0x1A, tensor.sparse_col_indices)
    size = len(values) + len(tensor.raw) + len(indices)
    return [b"\x12" + varint(size) + values, tensor.raw, indices + tail]


def _indices(key: int, values: Sequence[int]) -> bytes:
    return delimited(key, array("q", values).tobytes()) if values else b""


def decode_tensor(
    body: bytes, at: int, end: int, max_values: int, budget: FieldBudget | None = None
) -> TensorData:
    """Decodes a `Tensor` message.

    Raises:
        Malformed: the message is invalid, has more than `max_values` values when dense, or more
            fields than the budget allows.
        ValidationError: its shape or indices do not fit its values.
    """
    values, is_sparse, after = (0, 0), False, at
    if at < end and body[at] == 0x0A:  # the usual form: dense values, then a few bytes
        size, start = read_varint(body, at + 1, end)
        values, after = (start, start + size), start + size
    if after > end:
        raise Malformed("a tensor ends inside its values")
    header = body[after:end]
    is_usual = len(header) <= _CACHED_HEADER_BYTES
    dtype, shape, others = _read_header(header) if is_usual else _parse_header(header, budget)
    for key, a, b in others:
        values, is_sparse = (after + a, after + b), key == 0x12
    if shape and math.prod(shape) > max_values:
        raise Malformed(
            f"a tensor of shape {list(shape)} is above this server's limit of {max_values} values"
        )
    if is_sparse:
        return _decode_csr(body, values, dtype, list(shape), budget)
    raw, name = widen(body[values[0] : values[1]], dtype)
    return TensorData.from_bytes(raw, name, shape or None)


Header = tuple[int, tuple[int, ...], tuple[tuple[int, int, int], ...]]


def _parse_header(raw: bytes, budget: FieldBudget | None = None) -> Header:
    """Returns dtype, shape, and the fields that hold values (dense or sparse)."""
    dtype, shape, others = 0, list[int](), list[tuple[int, int, int]]()
    for key, a, b in fields(raw, 0, len(raw), budget):
        if key == 0x18:
            dtype = a
        elif key == 0x20:
            shape.append(to_int64(a))
        elif key == 0x22:
            shape += to_ints(raw, a, b, MAX_RANK)
        elif key in (0x0A, 0x12):
            others.append((key, a, b))
        if len(shape) > MAX_RANK:
            raise Malformed(f"a tensor has more than {MAX_RANK} dimensions")
    return dtype, tuple(shape), tuple(others)


_read_header = lru_cache(maxsize=1024)(_parse_header)
"""Headers repeat: the tensors of a batch differ in their values, seldom in their headers."""


def _decode_csr(
    body: bytes,
    span: tuple[int, int],
    dtype: int,
    shape: list[int],
    budget: FieldBudget | None,
) -> TensorData:
    parts = {0x0A: b"", 0x12: b"", 0x1A: b""}
    for key, a, b in fields(body, *span, budget):
        if key in parts:
            parts[key] = body[a:b]
    raw, name = widen(parts[0x0A], dtype)
    crow, col = to_offsets(parts[0x12]), to_offsets(parts[0x1A])
    return TensorData.from_bytes(raw, name, shape, crow, col)


def to_offsets(raw: bytes) -> list[int]:
    """Returns the int64 numbers in `raw`.

    Raises:
        Malformed: the size is not a multiple of eight bytes.
    """
    if len(raw) % 8:
        raise Malformed(f"{len(raw)} bytes are no whole number of int64 values")
    values = array("q")
    values.frombytes(raw)
    return values.tolist()


def widen(raw: bytes, dtype: int) -> tuple[bytes, TensorDtype]:
    """Returns the values of a wire dtype as float32 or int64.

    Raises:
        Malformed: the dtype is not known, or the bytes are no whole number of values.
    """
    name, item = _DTYPES.get(dtype, ("float32", 0))
    if not item or len(raw) % item:
        raise Malformed(f"{len(raw)} bytes are no values of dtype {dtype}")
    if item == 2:
        return _from_bfloat16(raw), name
    if dtype == 3:
        short = array("i")
        short.frombytes(raw)
        return array("q", short).tobytes(), name
    return raw, name


def _from_bfloat16(raw: bytes) -> bytes:
    """Widens bfloat16 values: a bfloat16 is the upper half of a float32."""
    wide = bytearray(2 * len(raw))
    wide[2::4] = raw[0::2]
    wide[3::4] = raw[1::2]
    return bytes(wide)


def encode_batched(tensors: Sequence[TensorData]) -> bytes:
    """Returns a `BatchedTensor` of tensors of one dtype and one shape but for
    the first dimension."""
    raws = [(t.to_dense() if t.sparse_crow_indices else t).raw for t in tensors]
    data, offsets = b"".join(raws), array("q", accumulate(map(len, raws), initial=0))
    return b"".join(
        [
            delimited(0x0A, data) if data else b"",
            delimited(0x12, offsets.tobytes()),
            b"\x18" + _NUMBERS[tensors[0].dtype],
            packed(0x22, tuple((tensors[0].shape or ())[1:])),
        ]
    )


def decode_batched(body: bytes, at: int, end: int) -> list[TensorData]:
    """Returns the tensors in a `BatchedTensor`.

    Raises:
        Malformed: the message is invalid.
        ValidationError: its trailing shape does not fit its values.
    """
    data, offsets, dtype, trailing = b"", list[int](), 0, list[int]()
    for key, a, b in fields(body, at, end):
        if key == 0x0A:
            data = body[a:b]
        elif key == 0x12:
            offsets = to_offsets(body[a:b])
        elif key == 0x18:
            dtype = a
        elif key in (0x20, 0x22):
            trailing += [to_int64(a)] if key == 0x20 else to_ints(body, a, b, MAX_RANK)
    if min(trailing, default=0) < 0 or len(trailing) >= MAX_RANK:
        raise Malformed(f"{trailing[:MAX_RANK]} is no trailing shape")
    raw, name = widen(data, dtype)
    return _cut(raw, _widened(offsets, len(data), dtype), name, trailing)


def _widened(offsets: list[int], size: int, dtype: int) -> list[int]:
    """Returns byte offsets after widening, checked to rise from 0 or more to at most `size`."""
    if any(a > b for a, b in zip([0, *offsets], [*offsets, size], strict=True)):
        raise Malformed("offsets do not rise within the data")
    return [2 * offset for offset in offsets] if dtype in (3, 4) else offsets


def _cut(
    raw: bytes, offsets: list[int], name: TensorDtype, trailing: list[int]
) -> list[TensorData]:
    step = math.prod(trailing) * (4 if name == "float32" else 8)
    tensors = []
    for start, stop in pairwise(offsets):
        leading = (stop - start) // step if step else 0
        tensors.append(TensorData.from_bytes(raw[start:stop], name, [leading, *trailing]))
    return tensors
