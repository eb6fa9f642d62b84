"""Upper bounds of the size of an operation's result, computed from its arguments before it runs.

One rule per kind of operation, by the name that `operations` gives it. A rule returns the bound of
the result and of the values computed on the way, or refuses the arguments. Bounds may be too high;
they are never too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tinkex.engine.custom_loss.arguments import ArgumentError

__all__ = ["MAX_RANK", "size_of"]

MAX_RANK = 8
"""Maximum dimensions of a tensor."""

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]
_Size = tuple[int, int]
_MAX_EXPONENT = 64
_SIZES = ("size", "shape", "repeats")


def size_of(rule: str, args: _Args, kwargs: _Kwargs) -> tuple[int, int]:
    """Returns upper bounds of the number of values in the result and of values computed for it.

    Raises:
        ArgumentError: these arguments are not allowed for the operation.
    """
    return _RULES[rule](args, kwargs)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)


def _numel(args: _Args, kwargs: _Kwargs) -> int:
    """Returns the number of values of the broadcast operands; the sum of all if they
    do not broadcast."""
    shapes = [each.shape for each in _tensors((args, kwargs))]
    try:
        return math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return sum(map(math.prod, shapes))


def _broadcast(args: _Args, kwargs: _Kwargs) -> _Size:
    count = _numel(args, kwargs)
    return count, count


def _arithmetic(args: _Args, kwargs: _Kwargs) -> _Size:
    """Bounds operators and functions of math, which mean something else for strings and tuples."""
    if kwargs or not all(isinstance(each, Tensor | int | float) for each in args):
        raise ArgumentError("has operands other than tensors and numbers")
    return _broadcast(args, kwargs)


def _power(args: _Args, kwargs: _Kwargs) -> _Size:
    is_plain = all(isinstance(each, int) for each in args)
    if is_plain and any(abs(each) > _MAX_EXPONENT for each in args[1:]):
        raise ArgumentError(f"has an exponent above {_MAX_EXPONENT}")
    return _arithmetic(args, kwargs)


def _division(args: _Args, kwargs: _Kwargs) -> _Size:
    is_rounded = kwargs.get("rounding_mode", "floor") is not None
    tensors = list(_tensors((args, kwargs)))
    has_float = any(each.is_floating_point() for each in tensors) or any(
        isinstance(each, float) for each in args
    )
    if tensors and is_rounded and not has_float:
        # The smallest integer divided by -1 has no result and crashes some processors.
        raise ArgumentError("divides whole numbers; make one of them a float")
    if not all(isinstance(each, Tensor | int | float) for each in args):
        raise ArgumentError("has operands other than tensors and numbers")
    return _broadcast(args, kwargs)


def _product(args: _Args, kwargs: _Kwargs) -> _Size:
    operands = list(_tensors((args, kwargs)))
    if len(operands) != 2:
        raise ArgumentError("must have two tensors")
    left, right = operands
    if max(left.dim(), right.dim()) > 2:
        raise ArgumentError("has a factor of more than two dimensions")
    shared = max(1, left.shape[-1] if left.dim() else 1)
    return left.numel() * right.numel() // shared**2, left.numel() * right.numel() // shared


def _outer(args: _Args, kwargs: _Kwargs) -> _Size:
    count = math.prod(each.numel() for each in _tensors((args, kwargs)))
    return count, count


def _gather(args: _Args, kwargs: _Kwargs) -> _Size:
    index = kwargs.get("index", args[2] if len(args) > 2 else None)
    if not isinstance(index, Tensor):
        raise ArgumentError("has no index")
    return index.numel(), index.numel()


def _where(args: _Args, kwargs: _Kwargs) -> _Size:
    if len(args) + len(kwargs) != 3:
        raise ArgumentError("must have a condition and two values")
    return _broadcast(args, kwargs)


def _expand(args: _Args, kwargs: _Kwargs) -> _Size:
    tensor, wanted = _tensor(args), _whole_numbers((args[1:], _sizes(kwargs)))
    own = [1] * (len(wanted) - tensor.dim()) + list(tensor.shape)
    if len(own) != len(wanted):
        raise ArgumentError("has fewer sizes than dimensions")
    count = math.prod(have if want < 0 else want for want, have in zip(wanted, own, strict=True))
    return count, count


def _reshape(args: _Args, kwargs: _Kwargs) -> _Size:
    _whole_numbers((args[1:], _sizes(kwargs)))
    return _tensor(args).numel(), 0


def _repeat(args: _Args, kwargs: _Kwargs) -> _Size:
    count = _tensor(args).numel() * math.prod(_whole_numbers((args[1:], _sizes(kwargs))))
    return count, count


def _create(args: _Args, kwargs: _Kwargs) -> _Size:
    # The sizes come first; a value to fill in may follow a tuple of them.
    plain = args[1:] if args and isinstance(args[0], Tensor) else args
    sizes = plain[0] if plain and isinstance(plain[0], tuple | list) else plain
    count = math.prod(_whole_numbers((sizes, _sizes(kwargs))))
    return count, count


def _arange(args: _Args, kwargs: _Kwargs) -> _Size:
    numbers = (*args, *(kwargs[n] for n in ("start", "end", "step") if n in kwargs))
    if not 1 <= len(numbers) <= 3 or not all(_is_whole(each) for each in numbers):
        raise ArgumentError("must have one to three whole numbers")
    count = sum(abs(each) for each in numbers[:2])
    return count, count


def _join(args: _Args, kwargs: _Kwargs) -> _Size:
    count = sum(each.numel() for each in _tensors((args, kwargs)))
    return count, count


def _vector(args: _Args, kwargs: _Kwargs) -> _Size:
    if any(each.dim() > 1 for each in _tensors(args)):
        raise ArgumentError("must have a vector; use torch.linalg.vector_norm")
    return _broadcast(args, kwargs)


def _getitem(args: _Args, kwargs: _Kwargs) -> _Size:
    if kwargs or len(args) != 2:
        raise ArgumentError("must have a value and an index")
    value, index = args
    if isinstance(value, tuple):
        return 0, 0
    if not isinstance(value, Tensor):
        raise ArgumentError("takes an item of something that has none")
    indices = list(_tensors(index))
    if not indices:
        return value.numel(), 0
    if len(indices) > 1:
        raise ArgumentError("has more than one tensor as an index")
    if indices[0].dtype == torch.bool:
        return value.numel(), value.numel()
    if indices[0] is not index:
        raise ArgumentError("has a tensor of positions beside other indices")
    count = indices[0].numel() * (value.numel() // max(1, value.shape[0] if value.dim() else 1))
    return count, count


def _attribute(args: _Args, _kwargs: _Kwargs) -> _Size:
    is_pair = isinstance(args[0], tuple) and hasattr(args[0], "values")
    if not isinstance(args[0], Tensor) and not is_pair:
        raise ArgumentError("reads an attribute of something other than a tensor")
    return (args[0].numel(), 0) if isinstance(args[0], Tensor) else (0, 0)


def _number(args: _Args, kwargs: _Kwargs) -> _Size:
    """The properties of a tensor that are known without computing it."""
    return 0, 0


def _tensor(args: _Args) -> Tensor:
    if not args or not isinstance(args[0], Tensor):
        raise ArgumentError("must have a tensor first")
    return args[0]


def _sizes(kwargs: _Kwargs) -> list[Any]:
    return [kwargs[name] for name in _SIZES if name in kwargs]


def _whole_numbers(value: object) -> list[int]:
    """All whole numbers in a nest of sequences.

    Raises:
        ArgumentError: the nest contains something else.
    """
    if isinstance(value, tuple | list):
        return [number for each in value for number in _whole_numbers(each)]
    if not _is_whole(value):
        raise ArgumentError("has a size that is no whole number")
    return [value]  # type: ignore[list-item]


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_RULES: dict[str, Callable[[_Args, _Kwargs], _Size]] = {
    "arange": _arange,
    "arithmetic": _arithmetic,
    "attribute": _attribute,
    "broadcast": _broadcast,
    "create": _create,
    "division": _division,
    "expand": _expand,
    "gather": _gather,
    "getitem": _getitem,
    "join": _join,
    "number": _number,
    "outer": _outer,
    "power": _power,
    "product": _product,
    "repeat": _repeat,
    "reshape": _reshape,
    "vector": _vector,
    "where": _where,
}
