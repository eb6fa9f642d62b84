"""Reading a Hugging Face model folder into the lean decoder: safetensors only, whole or sharded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tinkex.engine.errors import EngineUserError
from tinkex.engine.model.config import ModelConfig, bad_model_file, read_json
from tinkex.engine.model.decoder import Decoder, DecoderWeights
from tinkex.engine.model.layer import LayerWeights
from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["TensorFolder", "load_decoder"]


class TensorFolder:
    """The tensors of a model folder by name, read when asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        for path in _safetensors_files(folder):
            path.open("rb").close()  # safetensors calls a file without permission a missing one
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise bad_model_file(path, str(error)) from error
            self._files.update(dict.fromkeys(file.keys(), file))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str) -> Tensor:
        """The tensor as stored.

        Raises:
            EngineUserError: the folder lacks it.
        """
        if name not in self._files:
            raise EngineUserError(
                f"The model folder {self._folder.name!r} lacks the tensor {name!r}. "
                "Is the download complete?",
                code="bad-model-folder",
                field="model",
                value=name,
            )
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor


def load_decoder(
    folder: Path, config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> Decoder:
    """The frozen decoder stored in the folder."""
    with ExitStack() as stack:
        source = TensorFolder(folder, stack)
        shapes = _part_shapes(config)

        def stacked(*names: str) -> Tensor:
            parts = [_checked(source.get(name), name, shapes, folder) for name in names]
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            # clone: a tensor read from the file is a view of the mapped file.
            return whole.to(device=device, dtype=dtype, copy=len(parts) == 1)

        def stacked_if_present(*names: str) -> Tensor | None:
            return stacked(*names) if names[0] in source else None

        layers = [
            _load_layer(f"model.layers.{i}", stacked, stacked_if_present)
            for i in range(config.num_layers)
        ]
        embed_VD = stacked("model.embed_tokens.weight")
        head_VD = embed_VD if config.has_tied_head else stacked("lm_head.weight")
        norm_D = stacked("model.norm.weight")
    return Decoder(config, DecoderWeights(embed_VD, layers, norm_D, FrozenLinear(head_VD)))


def _load_layer(
    prefix: str, get: Callable[..., Tensor], get_if_present: Callable[..., Tensor | None]
) -> LayerWeights:
    attn, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"

    def linear(*names: str) -> FrozenLinear:
        weight = get(*(f"{name}.weight" for name in names))
        return FrozenLinear(weight, get_if_present(*(f"{name}.bias" for name in names)))

    return LayerWeights(
        attn_norm_D=get(f"{prefix}.input_layernorm.weight"),
        qkv=linear(*(f"{attn}.{name}_proj" for name in "qkv")),
        out=linear(f"{attn}.o_proj"),
        mlp_norm_D=get(f"{prefix}.post_attention_layernorm.weight"),
        gate_up=linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down=linear(f"{mlp}.down_proj"),
        q_norm_C=get_if_present(f"{attn}.q_norm.weight"),
        k_norm_C=get_if_present(f"{attn}.k_norm.weight"),
    )


def _checked(tensor: Tensor, name: str, shapes: dict[str, tuple[int, ...]], folder: Path) -> Tensor:
    """The tensor, if it has the shape that the config gives it.

    Raises:
        EngineUserError: it has another. Tables and caches are made by the config's sizes.
    """
    *_, part, kind = name.split(".")
    wanted = shapes[part] if kind == "weight" else shapes[part][:1]
    if tensor.shape != wanted:
        raise EngineUserError(
            f"The tensor {name!r} in the model folder {folder.name!r} has the shape "
            f"{list(tensor.shape)}, but config.json asks for {list(wanted)}. Download both again; "
            "they must be of one model.",
            code="bad-model-folder",
            field="model",
            value=name,
        )
    return tensor


def _part_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by the last part of its name; a bias has the rows alone."""
    hidden, wide, head = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * head, config.num_kv_heads * head
    return {
        "embed_tokens": (config.vocab_size, hidden),
        "lm_head": (config.vocab_size, hidden),
        **dict.fromkeys(("norm", "input_layernorm", "post_attention_layernorm"), (hidden,)),
        "q_proj": (q, hidden),
        **dict.fromkeys(("k_proj", "v_proj"), (kv, hidden)),
        "o_proj": (hidden, q),
        **dict.fromkeys(("gate_proj", "up_proj"), (wide, hidden)),
        "down_proj": (hidden, wide),
        **dict.fromkeys(("q_norm", "k_norm"), (head,)),
    }


def _safetensors_files(folder: Path) -> list[Path]:
    index = read_json(folder / "model.safetensors.index.json")
    weight_map = index.get("weight_map", {})
    names: list[str] = list(weight_map.values()) if isinstance(weight_map, dict) else [""]
    if not all(isinstance(name, str) and name and Path(name).name == name for name in names):
        raise bad_model_file(folder / "model.safetensors.index.json", "it names no plain files")
    names = sorted(set(names)) or ["model.safetensors"]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise EngineUserError(
            f"The model folder {folder.name!r} lacks {missing[0]}. Only safetensors weights are "
            "read (never pickled ones); convert or download them.",
            code="bad-model-folder",
            field="model",
            value=missing[0],
        )
    return [folder / name for name in names]
