"""Reads the files of an adapter folder, which may be torn, forged, or claim huge sizes.

Every defect raises an error that names the file. Sizes that a file claims are compared with its
actual size before anything is allocated.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeVar

import msgspec
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from tinkex.engine.errors import EngineUserError
from tinkex.engine.lora.adapter import LoraLayout

__all__ = ["MOST_RANK", "check_fits", "read_config", "read_struct", "read_tensors", "wrong_base"]

T = TypeVar("T")

MOST_RANK = 2**53  # beyond it a scale is no number any more


class _PeftConfig(msgspec.Struct):
    """The part of peft's adapter_config.json that is read here."""

    r: int
    lora_alpha: float = 8
    use_rslora: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.r <= MOST_RANK or not math.isfinite(self.lora_alpha):
            raise ValueError(f"r={self.r} and lora_alpha={self.lora_alpha} make no scale")

    @property
    def scale(self) -> float:
        """The factor by which peft multiplies the product of B and A."""
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


def read_config(path: Path) -> _PeftConfig:
    """Reads the adapter's configuration.

    Raises:
        EngineUserError: the file is not a configuration.
    """
    return read_struct(path, _PeftConfig)


def read_struct(path: Path, type_: type[T]) -> T:
    """Reads the value in a JSON file.

    Raises:
        EngineUserError: the file does not hold such a value.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, FileNotFoundError) as error:
        raise _damaged(path, error) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns the tensors in a safetensors file, each a view of the mapped file.

    Raises:
        EngineUserError: the file is not a safetensors file, or is torn.
    """
    try:
        return safetensors.torch.load_file(path)
    except (SafetensorError, FileNotFoundError, KeyError, ValueError, RuntimeError) as error:
        raise _damaged(path, error) from error


def check_fits(
    layout: LoraLayout, tensors: dict[str, Tensor], prefix: str, is_complete: bool
) -> None:
    """Returns if the tensors of this prefix match the layout, as far as they are present.

    Raises:
        EngineUserError: one is missing, superfluous, or of another shape.
    """
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    left = {name for name in found if name.startswith(prefix)}
    if not left:
        raise wrong_base(f"{prefix}*")
    for group in layout.groups:
        for target in group.targets:
            shapes = {
                "A": (target.width(layout.rank), target.in_features),
                "B": (target.out_features, target.width(layout.rank)),
            }
            for part, shape in shapes.items():
                key = f"{prefix}{target.name}.lora_{part}.weight"
                if key in found or is_complete:
                    if found.get(key) != shape:
                        raise wrong_base(key)
                    left.discard(key)
    if left:
        raise wrong_base(min(left))


def wrong_base(tensor: str) -> EngineUserError:
    """Returns the error for an adapter of another base model."""
    return EngineUserError(
        f"The adapter's tensor {tensor[:200]!r} does not fit this base model. "
        "Load it onto the model it was trained on.",
        code="wrong-base-model",
        field="model",
        value=tensor[:200],
    )


def _damaged(path: Path, error: Exception) -> EngineUserError:
    return EngineUserError(
        f"{path.name} of {path.parent.name!r} cannot be read: {str(error)[:200]}. "
        "Save the checkpoint anew, or load another one.",
        code="damaged-checkpoint",
        field="folder",
        value=path.parent.name,
    )
