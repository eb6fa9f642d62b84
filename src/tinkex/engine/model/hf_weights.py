"""Reading a Hugging Face model folder into the lean decoder: safetensors only, whole or sharded."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tinkex.engine.errors import EngineUserError
from tinkex.engine.model.config import bad_model_file, read_json
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.spec import DecoderSpec
from tinkex.engine.model.weights import DecoderWeights, ExpertWeights, LayerWeights, MlpWeights
from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["TensorFolder", "load_decoder"]


class TensorFolder:
    """The tensors of a model folder by name; each file is opened when it is first used."""

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
    folder: Path, spec: DecoderSpec, device: torch.device, dtype: torch.dtype
) -> Decoder:
    """Loads the frozen decoder stored in the folder."""
    with ExitStack() as stack:
        reader = _Reader(TensorFolder(folder, stack), spec, folder, device, dtype)
        layers = [reader.layer(f"model.layers.{i}") for i in range(spec.num_layers)]
        embed_VD = reader.stacked("model.embed_tokens.weight")
        head_VD = embed_VD if spec.has_tied_head else reader.stacked("lm_head.weight")
        norm_D = reader.norm("model.norm.weight")
    scale = None if spec.embed_scale == 1.0 else torch.tensor(spec.embed_scale).to(embed_VD)
    return Decoder(spec, DecoderWeights(embed_VD, layers, norm_D, FrozenLinear(head_VD), scale))


class _Reader:
    """Reads the tensors that a description names and stacks them as the decoder needs them."""

    def __init__(
        self,
        source: TensorFolder,
        spec: DecoderSpec,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._source, self._spec, self._folder = source, spec, folder
        self._device, self._dtype = device, dtype
        self._shapes = _part_shapes(spec)

    def stacked(self, *names: str) -> Tensor:
        """Returns the tensors of these names, concatenated along the rows."""
        parts = [
            _checked(self._source.get(name), name, self._shapes, self._folder) for name in names
        ]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        # clone: a tensor read from the file is a view of the mapped file.
        return whole.to(device=self._device, dtype=self._dtype, copy=len(parts) == 1)

    def norm(self, name: str) -> Tensor:
        """Returns the weight of a norm, ready to multiply with."""
        norm = self._spec.norm
        if not (norm.adds_one or norm.is_wide):
            return self.stacked(name)
        weight = _checked(self._source.get(name), name, self._shapes, self._folder)
        weight = weight.to(device=self._device, dtype=torch.float32, copy=True)
        if norm.adds_one:
            weight += 1.0
        return weight if norm.is_wide else weight.to(self._dtype)

    def layer(self, prefix: str) -> LayerWeights:
        """Returns the weights of one layer."""
        attn = f"{prefix}.self_attn"
        qkv = ("qkv",) if self._spec.has_fused_projections else ("q", "k", "v")
        norms, has_qk_norm = self._spec.norms, self._spec.qk_norm != "none"
        return LayerWeights(
            qkv=self._linear(*(f"{attn}.{name}_proj" for name in qkv)),
            out=self._linear(f"{attn}.o_proj"),
            mlp=self._mlp(f"{prefix}.mlp"),
            before_attn_D=self._norm_of(prefix, norms.before_attn),
            before_mlp_D=self._norm_of(prefix, norms.before_mlp),
            after_attn_D=self._norm_of(prefix, norms.after_attn),
            after_mlp_D=self._norm_of(prefix, norms.after_mlp),
            q_norm_C=self._norm_of(attn, "q_norm" if has_qk_norm else None),
            k_norm_C=self._norm_of(attn, "k_norm" if has_qk_norm else None),
        )

    def _mlp(self, prefix: str) -> MlpWeights | ExpertWeights:
        if self._spec.experts is None:
            return self._gated(prefix)
        names = (f"{prefix}.experts.{i}" for i in range(self._spec.experts.count))
        return ExpertWeights(
            self._linear(f"{prefix}.gate"), tuple(self._gated(name) for name in names)
        )

    def _gated(self, prefix: str) -> MlpWeights:
        parts = ("gate_up",) if self._spec.has_fused_projections else ("gate", "up")
        return MlpWeights(
            gate_up=self._linear(*(f"{prefix}.{name}_proj" for name in parts)),
            down=self._linear(f"{prefix}.down_proj"),
        )

    def _norm_of(self, prefix: str, name: str | None) -> Tensor | None:
        return None if name is None else self.norm(f"{prefix}.{name}.weight")

    def _linear(self, *names: str) -> FrozenLinear:
        weight = self.stacked(*(f"{name}.weight" for name in names))
        biases = [f"{name}.bias" for name in names]
        return FrozenLinear(weight, self.stacked(*biases) if biases[0] in self._source else None)


def _checked(tensor: Tensor, name: str, shapes: dict[str, tuple[int, ...]], folder: Path) -> Tensor:
    """Returns the tensor if it has the shape that the config gives it.

    Raises:
        EngineUserError: the shape differs. Tables and caches are allocated by the config's sizes.
    """
    *_, part, kind = name.split(".")
    wanted = shapes[part] if kind == "weight" else shapes[part][:1]
    if tensor.shape != wanted:
        raise EngineUserError(
            f"The tensor {name!r} in the model folder {folder.name!r} has the shape "
            f"{list(tensor.shape)}, but config.json gives {list(wanted)}. Download both again; "
            "they must be of one model.",
            code="bad-model-folder",
            field="model",
            value=name,
        )
    return tensor


def _part_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every weight by the last part of its name; a bias has the
    number of rows."""
    hidden, wide = spec.hidden_size, spec.intermediate_size
    q, kv = spec.query_width, spec.key_width
    is_whole = spec.qk_norm == "projection"
    return {
        "embed_tokens": (spec.vocab_size, hidden),
        "lm_head": (spec.vocab_size, hidden),
        **dict.fromkeys(("norm", *spec.norms.names()), (hidden,)),
        "q_proj": (q, hidden),
        **dict.fromkeys(("k_proj", "v_proj"), (kv, hidden)),
        "qkv_proj": (q + 2 * kv, hidden),
        "o_proj": (hidden, q),
        **dict.fromkeys(("gate_proj", "up_proj"), (wide, hidden)),
        "gate_up_proj": (2 * wide, hidden),
        "down_proj": (hidden, wide),
        "gate": (0 if spec.experts is None else spec.experts.count, hidden),
        "q_norm": (q if is_whole else spec.head_dim,),
        "k_norm": (kv if is_whole else spec.head_dim,),
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
