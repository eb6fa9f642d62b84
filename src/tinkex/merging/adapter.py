"""The change that an adapter makes to each matrix of its base: `(alpha / rank) * B @ A`, by rows.

Shapes: R rank · D inputs · O outputs · E experts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tinkex.merging.errors import NotMergeableError
from tinkex.merging.tensor_files import read_header

__all__ = ["Adapter", "Change"]

_PREFIX = "base_model.model."
_EXPERT = re.compile(r"(.+\.mlp\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)")


class _Config(msgspec.Struct):
    """The part of adapter_config.json that matters here."""

    r: int
    lora_alpha: float
    use_rslora: bool = False

    @property
    def scale(self) -> float:
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


@dataclass(frozen=True, slots=True)
class Change:
    """What is added to one matrix."""

    a_RD: npt.NDArray[np.float32]
    b_OR: npt.NDArray[np.float32]
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix."""
        return self.b_OR.shape[0], self.a_RD.shape[1]

    def rows(self, first: int, end: int) -> npt.NDArray[np.float32]:
        """These rows of the change."""
        return (self.b_OR[first:end] @ self.a_RD) * np.float32(self.scale)


class Adapter:
    """A PEFT folder. `change_of` gives what it does to a matrix of the base, by its module's path;
    `unused` then has the names that no matrix used.

    Raises:
        NotMergeableError: the folder holds no plain adapter, as an encrypted export.
    """

    def __init__(self, folder: Path) -> None:
        weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
        if not weights.is_file() or not config.is_file():
            raise NotMergeableError(
                "The checkpoint holds no plain adapter. Merge another one of the run."
            )
        try:
            self._config = msgspec.json.decode(config.read_bytes(), type=_Config)
        except (OSError, msgspec.DecodeError) as error:
            raise NotMergeableError(f"{config.name} cannot be read: {error}.") from error
        tensors = read_header(weights)
        names = {name.split(".lora_")[0] for name in tensors}
        self._pairs = {
            name.removeprefix(_PREFIX): tuple(
                tensors[f"{name}.lora_{part}.weight"].numbers() for part in "AB"
            )
            for name in names
        }
        self.unused = set(self._pairs)

    def change_of(self, module: str) -> Change | None:
        """What is added to the weight of the module; None for nothing."""
        expert = _EXPERT.fullmatch(module)
        if expert is not None:
            return self._change_of_expert(expert[1], int(expert[2]), expert[3])
        if module not in self._pairs:
            return None
        self.unused.discard(module)
        a_RD, b_OR = self._pairs[module]
        return Change(a_RD, b_OR, self._config.scale)

    def _change_of_expert(self, experts: str, index: int, part: str) -> Change | None:
        """PEFT stacks A and B of all experts: the rows of A expert by expert, the columns of B
        rank by rank, and those of gate and up one below the other."""
        name = experts if part == "down_proj" else f"{experts}.base_layer"
        if name not in self._pairs:
            return None
        self.unused.discard(name)
        a_all, b_all = self._pairs[name]
        rank = self._config.r
        a_RD = a_all.reshape(-1, rank, a_all.shape[1])[index]
        b_OR = b_all.reshape(len(b_all), rank, -1)[:, :, index]
        if part != "down_proj":
            half = len(b_OR) // 2
            b_OR = b_OR[:half] if part == "gate_proj" else b_OR[half:]
        return Change(a_RD, np.ascontiguousarray(b_OR), self._config.scale)
