"""Checks of an engine's device and number type, made before anything is loaded."""

from __future__ import annotations

import torch

from tinkex.engine.errors import EngineUserError
from tinkex.engine.options import DTYPES

__all__ = ["usable_device", "usable_dtype"]

_NAMES = "Use cpu, cuda, cuda:N, mps or xpu, as PyTorch names them."


def usable_dtype(name: str) -> torch.dtype:
    """The type of that name.

    Raises:
        EngineUserError: base weights cannot have it.
    """
    if name not in DTYPES:
        raise EngineUserError(
            f"dtype={name!r} is not a type for base weights. Use one of {', '.join(DTYPES)}.",
            code="bad-dtype",
            field="dtype",
            value=name,
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def usable_device(name: str, dtype: torch.dtype) -> torch.device:
    """The device of that name, after a small product on it in that type.

    Raises:
        EngineUserError: PyTorch does not know it, or cannot compute on it here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise _bad_device(f"device={name!r} is not the name of a device. {_NAMES}", name) from error
    try:
        ones_DD = torch.ones(2, 2, device=device, dtype=dtype)
        (ones_DD @ ones_DD).sum().item()
    except torch.cuda.OutOfMemoryError:
        raise  # another program may free it: the next try may succeed
    except Exception as error:  # each kind of device has errors of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        advice = _NAMES
        if device.type == "cuda" and not torch.cuda.is_available():
            reason = f"PyTorch {torch.__version__} finds no CUDA device ({reason})"
            advice = "Install a CUDA build of PyTorch and its driver, or use --device cpu."
        message = f"device={name!r} cannot be used: {reason}. {advice}"
        raise _bad_device(message, name) from error
    return device


def _bad_device(message: str, name: str) -> EngineUserError:
    return EngineUserError(message, code="bad-device", field="device", value=name)
