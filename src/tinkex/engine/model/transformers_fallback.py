"""Any other causal language model, run through transformers: correctness first, then speed.

The model's own code runs each sequence by itself; its linear layers are wrapped so that they add
the LoRA of the adapter at hand. Only local safetensors weights, never code from a model folder.
There is no cache of keys and values here: sampling computes the sequence again for every token.

Shapes: T tokens of the batch · D hidden · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tinkex.engine.errors import EngineUserError
from tinkex.engine.lora.adapter import HEAD_SITE, LoraBatch, LoraGroup, LoraTarget
from tinkex.engine.lora.linear import LoraPair, Segment, lora_linear, lora_linear_backward
from tinkex.engine.ops.linear import FrozenLinear

__all__ = ["FallbackBackbone", "load_fallback"]


class FallbackBackbone:
    """A transformers model behind the interface of the lean decoder."""

    def __init__(self, model: Any, folder_name: str) -> None:
        model.eval().requires_grad_(False)
        self._body = model.base_model
        self._current = _Current()
        self.num_parameters = sum(p.numel() for p in model.parameters())
        head = model.get_output_embeddings()
        self.head = FrozenLinear(head.weight)
        self.head_VD: Tensor = head.weight
        self._head_scale = _measure_head(model, self.head_VD, folder_name)
        prefix = model.base_model_prefix
        self.groups = [
            LoraGroup(name, _kind(name), (_wrap(self._body, name, prefix, self._current),))
            for name, module in list(self._body.named_modules())
            if _is_linear(module) and any(part.isdigit() for part in name.split("."))
        ]
        vocab_size, width = self.head_VD.shape
        self.groups.append(
            LoraGroup(HEAD_SITE, "unembed", (LoraTarget(_name_of(model, head), width, vocab_size),))
        )

    @torch.no_grad()
    def forward_hidden(self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch) -> Tensor:
        """The last hidden states of whole sequences, packed end to end."""
        return self._hidden(tokens_T, lengths, lora)

    @torch.enable_grad()
    def forward_with_backward(
        self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch
    ) -> tuple[Tensor, Callable[[Tensor], None]]:
        """The last hidden states of whole sequences, packed end to end, and the backward."""
        hidden_TD = self._hidden(tokens_T, lengths, lora)

        def backward(dhidden_TD: Tensor) -> None:
            if hidden_TD.requires_grad:
                hidden_TD.backward(dhidden_TD)  # type: ignore[no-untyped-call]

        return hidden_TD.detach(), backward

    def _hidden(self, tokens_T: Tensor, lengths: list[int], lora: LoraBatch) -> Tensor:
        parts, start = [], 0
        for length in lengths:
            self._current.pairs = lora.pairs_at(start)
            output = self._body(tokens_T[None, start : start + length], use_cache=False)
            parts.append(output.last_hidden_state[0] * self._head_scale)
            start += length
        return torch.cat(parts)


def load_fallback(folder: Path, device: torch.device, dtype: torch.dtype) -> FallbackBackbone:
    """Loads the model in the folder into transformers.

    Raises:
        EngineUserError: transformers is not installed, does not know the model, or its head is
            not a plain matrix.
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise EngineUserError(
            "This model is not of a family with code of its own here and needs transformers. "
            "Install it: pip install transformers",
            code="needs-transformers",
            field="model",
            value=folder.name,
        ) from error
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(  # nosec B615 # a local folder
            folder,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
        )
    except Exception as error:  # a config that is wrong shows in many ways there
        raise EngineUserError(
            f"transformers cannot load {folder.name!r}: {type(error).__name__} {str(error)[:300]}",
            code="bad-model-folder",
            field="model",
            value=folder.name,
        ) from error
    return FallbackBackbone(model.to(device), folder.name)


class _Current:
    """The adapter of the sequence being computed."""

    pairs: dict[str, LoraPair] | None = None


class _LoraLinear(nn.Module):
    """A frozen linear layer that adds the current adapter's LoRA."""

    def __init__(self, inner: Any, site: str, current: _Current) -> None:
        super().__init__()
        self.inner = inner
        self._site, self._current = site, current
        weight_OD = inner.weight if isinstance(inner, nn.Linear) else inner.weight.T
        self._linear = FrozenLinear(weight_OD, inner.bias)

    @property
    def weight(self) -> Tensor:
        """The frozen weight as stored, for model code that reads it."""
        weight: Tensor = self.inner.weight
        return weight

    def forward(self, x: Tensor) -> Tensor:
        pair = (self._current.pairs or {}).get(self._site)
        rows_TD = x.reshape(-1, x.shape[-1])
        segments = [] if pair is None else [Segment(0, rows_TD.shape[0], pair)]
        out_TO: Tensor = _LoraLinearFunction.apply(rows_TD, self._linear, segments, _ANCHOR)  # type: ignore[no-untyped-call]
        return out_TO.reshape(*x.shape[:-1], -1)


_ANCHOR = torch.zeros((), requires_grad=True)
"""Makes autograd record a layer whose input needs no gradient: its LoRA does."""


class _LoraLinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, linear: FrozenLinear, segments: list[Segment], anchor: Tensor
    ) -> Tensor:
        y_TO, downs = lora_linear(x_TD, linear, segments)
        ctx.save_for_backward(x_TD, *downs)
        ctx.linear, ctx.segments = linear, segments
        return y_TO

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (dy_TO,) = grad_outputs
        x_TD, *downs = ctx.saved_tensors
        dx_TD = lora_linear_backward([dy_TO], x_TD, ctx.linear, ctx.segments, downs)
        return dx_TD, None, None, None


def _is_linear(module: nn.Module) -> bool:
    # Conv1D is transformers' linear layer with the weight transposed (GPT-2 and its kin).
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _kind(name: str) -> Literal["attn", "mlp"]:
    return "attn" if "attn" in name.lower() or "attention" in name.lower() else "mlp"


def _wrap(body: Any, name: str, prefix: str, current: _Current) -> LoraTarget:
    """Replaces the named layer by a LoRA-aware one; returns the layer's place, for PEFT."""
    parent_name, _, child_name = name.rpartition(".")
    parent = body.get_submodule(parent_name)
    inner = getattr(parent, child_name)
    setattr(parent, child_name, _LoraLinear(inner, name, current))
    rows, columns = inner.weight.shape
    size = (columns, rows) if isinstance(inner, nn.Linear) else (rows, columns)
    return LoraTarget(f"{prefix}.{name}", *size)


def _name_of(model: Any, wanted: nn.Module) -> str:
    return next(str(name) for name, module in model.named_modules() if module is wanted)


@torch.no_grad()
def _measure_head(model: Any, head_VD: Tensor, folder_name: str) -> float:
    """Measures the factor between `hidden @ head.T` and the model's logits; 1 for most models.

    Raises:
        EngineUserError: there is no such factor: the head caps, shifts or mixes its logits.
    """
    tokens_1T = torch.arange(min(8, head_VD.shape[0]), device=head_VD.device)[None]
    logits = model(tokens_1T, use_cache=False).logits[0].float()
    hidden = model.base_model(tokens_1T, use_cache=False).last_hidden_state[0]
    plain = (hidden @ head_VD.T).float() if hidden.shape[-1] == head_VD.shape[1] else None
    if plain is not None and plain.shape == logits.shape:
        scale = float((logits * plain).sum() / (plain * plain).sum())
        scale = 1.0 if abs(scale - 1) < 1e-5 else scale
        if torch.allclose(plain * scale, logits, rtol=1e-3, atol=1e-3):
            return scale
    raise EngineUserError(
        f"The model in {folder_name!r} does more to its logits than one matrix and one factor "
        "(a bias, a cap or several heads), which this engine does not train. Use another model.",
        code="unsupported-model",
        field="model",
        value=type(model).__name__,
    )
