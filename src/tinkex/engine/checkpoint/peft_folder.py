"""Adapters on disk: PEFT folders, with the optimizer's state beside them. Safetensors, no pickle.

    adapter_config.json           what peft reads
    adapter_model.safetensors     A and B under peft's names
    tinkex_adapter.json           spec, base, step, and what else is in the folder
    tinkex_files.json             sizes and hashes of the others, checked when they are read
    optimizer.safetensors         the optimizer's tensors, each under the same names after its own
                                  (scope "optimizer" or "all")
    gradients.safetensors         pending gradients                     (scope "all", if any)

Folders written by peft itself load too: their alpha is folded into B, and matrices they do not
train stay at zero.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinkex.engine.checkpoint.peft_parsing import (
    MOST_RANK,
    check_fits,
    read_config,
    read_struct,
    read_tensors,
)
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec, StateScope
from tinkex.engine.lora.adapter import AdapterWeights, LoraGroup, LoraLayout
from tinkex.engine.training.optimizer import OptimizerState, TrainingState
from tinkex.engine.training.update_rules import rule_named
from tinkex.files.atomic_folder import Content, folder_size_bytes, verify_folder, write_folder
from tinkex.files.safetensors_writer import tensor_chunks
from tinkex.types.training import MAX_LORA_ALPHA

__all__ = ["load_state", "load_weights", "save_state"]

_PREFIX = "base_model.model."
_WEIGHTS, _CONFIG, _OWN = "adapter_model.safetensors", "adapter_config.json", "tinkex_adapter.json"
_OPTIMIZER, _GRADIENTS = "optimizer.safetensors", "gradients.safetensors"


class _Own(msgspec.Struct, kw_only=True):
    """The content of tinkex_adapter.json."""

    format: int = 1
    base_model: str
    spec: LoraSpec
    step: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    pending_backwards: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    has_optimizer: bool = False
    optimizer: str = "adamw"  # whose tensors those are; older folders do not say and hold AdamW's
    has_gradients: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.spec.rank <= MOST_RANK:
            raise ValueError(f"the rank must be from 1 to {MOST_RANK}")
        if not 0 < self.spec.alpha <= MAX_LORA_ALPHA:
            raise ValueError(f"alpha must be above 0 and at most {MAX_LORA_ALPHA:g}")
        if self.spec.alpha / self.spec.rank < sys.float_info.min:
            raise ValueError(f"alpha={self.spec.alpha} and rank={self.spec.rank} make no scale")


def save_state(
    folder: Path, state: TrainingState, scope: StateScope, base_model: str, base_path: str
) -> int:
    """Writes as much of the adapter as `scope` says into the folder; returns its size in bytes."""
    layout = state.weights.layout
    with_optimizer = scope != "weights"
    with_gradients = scope == "all" and state.gradient is not None
    own = _Own(
        base_model=base_model,
        spec=layout.spec,
        step=state.step if with_optimizer else 0,
        pending_backwards=state.pending_backwards if with_gradients else 0,
        has_optimizer=with_optimizer and state.optimizer is not None,
        has_gradients=with_gradients,
    )
    if own.has_optimizer and state.optimizer is not None:
        own.optimizer = state.optimizer.name
    files: dict[str, Content] = {
        _CONFIG: json.dumps(_peft_config(layout, base_path), indent=2).encode(),
        _OWN: msgspec.json.format(msgspec.json.encode(own)),
        _WEIGHTS: _tensor_file(_named(layout, state.weights.flat, _PREFIX)),
    }
    if own.has_optimizer and state.optimizer is not None:
        kept: dict[str, npt.NDArray[np.float32]] = {}
        for name, flat in state.optimizer.tensors.items():
            kept |= _named(layout, flat, f"{name}.")
        files[_OPTIMIZER] = _tensor_file(kept)
    if own.has_gradients and state.gradient is not None:
        files[_GRADIENTS] = _tensor_file(_named(layout, state.gradient, "gradient."))
    write_folder(folder, files)
    return folder_size_bytes(folder)


def load_weights(folder: Path, groups: list[LoraGroup], device: torch.device) -> AdapterWeights:
    """Loads the folder's adapter, for a base model with this LoRA layout.

    Raises:
        EngineUserError: the folder holds no adapter, or one for another base.
        StorageError: a file is not as it was saved.
    """
    verify_folder(folder)
    return _load_weights(folder, groups, device)


def _load_weights(folder: Path, groups: list[LoraGroup], device: torch.device) -> AdapterWeights:
    if not (folder / _CONFIG).is_file() or not (folder / _WEIGHTS).is_file():
        raise EngineUserError(
            f"{folder.name!r} holds no adapter ({_CONFIG} and {_WEIGHTS}).",
            code="no-such-checkpoint",
            field="folder",
            value=folder.name,
        )
    config, tensors = read_config(folder / _CONFIG), read_tensors(folder / _WEIGHTS)
    layout = LoraLayout(groups, _read_spec(folder, config.r, groups, tensors))
    flat = _fill(layout, tensors, _PREFIX, is_complete=(folder / _OWN).is_file())
    scale = config.scale
    if scale != layout.scale:
        for _, b_OR in layout.named(flat).values():
            b_OR.mul_(scale / layout.scale)
    return AdapterWeights(layout, flat.to(device))


def load_state(
    folder: Path, groups: list[LoraGroup], scope: StateScope, device: torch.device
) -> TrainingState:
    """Loads the folder's adapter with as much of its training state as `scope` says.

    Raises:
        EngineUserError: `scope` needs the optimizer state and it is not there.
        StorageError: a file is not as it was saved.
    """
    verify_folder(folder)
    state = TrainingState(_load_weights(folder, groups, device))
    if scope == "weights":
        return state
    own_path = folder / _OWN
    if not own_path.is_file():
        raise EngineUserError(
            f"{folder.name!r} was saved without optimizer state. Load its weights alone.",
            code="no-optimizer-state",
            field="optimizer",
            value=folder.name,
        )
    own = read_struct(own_path, _Own)
    layout = state.weights.layout
    state.step = own.step
    if own.has_optimizer:
        tensors = read_tensors(folder / _OPTIMIZER)
        kept = {
            name: _fill(layout, tensors, f"{name}.", is_complete=True).to(device)
            for name in rule_named(own.optimizer).state_names
        }
        state.optimizer = OptimizerState(own.optimizer, kept)
    if scope == "all" and own.has_gradients:
        tensors = read_tensors(folder / _GRADIENTS)
        gradient = _fill(layout, tensors, "gradient.", is_complete=True)
        state.gradient, state.pending_backwards = gradient.to(device), own.pending_backwards
    return state


def _tensor_file(tensors: dict[str, npt.NDArray[np.float32]]) -> Content:
    return lambda: tensor_chunks(tensors)


def _named(layout: LoraLayout, flat: Tensor, prefix: str) -> dict[str, npt.NDArray[np.float32]]:
    named = {}
    for name, (a_RD, b_OR) in layout.named(flat.cpu()).items():
        named[f"{prefix}{name}.lora_A.weight"] = a_RD.numpy()
        named[f"{prefix}{name}.lora_B.weight"] = b_OR.numpy()
    return named


def _fill(layout: LoraLayout, tensors: dict[str, Tensor], prefix: str, is_complete: bool) -> Tensor:
    """Copies the named tensors to their places in a flat tensor."""
    check_fits(layout, tensors, prefix, is_complete)
    flat = torch.zeros(layout.numel, dtype=torch.float32)
    for name, pair in layout.named(flat).items():
        for part, goal in zip(("A", "B"), pair, strict=True):
            key = f"{prefix}{name}.lora_{part}.weight"
            if key in tensors:
                goal.copy_(tensors[key])
    return flat


def _peft_config(layout: LoraLayout, base_path: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_path,
        "r": layout.rank,
        "lora_alpha": layout.spec.alpha,
        "lora_dropout": 0.0,
        "target_modules": _peft_targets(layout),
        **_peft_parameters(layout),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _peft_parameters(layout: LoraLayout) -> dict[str, list[str]]:
    """Returns the names of expert parameters, which peft does not know as modules."""
    found = {t.experts.name for g in layout.groups for t in g.targets if t.experts is not None}
    return {"target_parameters": sorted(found)} if found else {}


def _peft_targets(layout: LoraLayout) -> list[str]:
    """Returns short names (q_proj), or whole paths where a short one would be ambiguous."""
    trained = [t.name for g in layout.groups for t in g.targets if t.experts is None]
    others = [t.name for g in layout.all_groups if g not in layout.groups for t in g.targets]
    short = {name.rsplit(".", 1)[-1] for name in trained}
    if short & {name.rsplit(".", 1)[-1] for name in others}:
        return sorted(trained)
    return sorted(short)


def _read_spec(
    folder: Path, rank: int, groups: list[LoraGroup], tensors: dict[str, Tensor]
) -> LoraSpec:
    own_path = folder / _OWN
    if own_path.is_file():
        return read_struct(own_path, _Own).spec
    trained = {name.removeprefix(_PREFIX).split(".lora_")[0] for name in tensors}
    kinds = {g.kind for g in groups for t in g.targets if t.name in trained}
    return LoraSpec(
        rank=rank,
        train_attn="attn" in kinds,
        train_mlp="mlp" in kinds,
        train_unembed="unembed" in kinds,
    )
